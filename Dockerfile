# `memagent serve` in a container. Not built where it was written, which had no Docker daemon: its pip install and the
# start of the server were run by hand in a fresh environment, the lines with apt-get and the user were not.
#
#   docker build -t memagent .
#   python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > keys.txt
#   docker run -p 127.0.0.1:8321:8321 -v ./keys.txt:/run/secrets/keys:ro -v memagent:/data \
#       --add-host host.docker.internal:host-gateway memagent --base-url http://host.docker.internal:8000/v1
FROM python:3.12-slim

# What llama.cpp needs, for a model in this process; with --base-url it does without.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir '.[serve,formats,tokenizers]'

RUN useradd --create-home --uid 10001 reader && install -d -o reader /data
USER reader
WORKDIR /data
ENV XDG_CACHE_HOME=/data/cache
VOLUME /data
EXPOSE 8321

# Outside of the container's own address a server needs keys.
ENTRYPOINT ["memagent", "serve", "--host", "0.0.0.0", "--keys", "/run/secrets/keys", "--data", "/data/server"]
