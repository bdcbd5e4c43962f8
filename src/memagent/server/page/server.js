// The server's API: files, reads, and the events of a read while it goes on.

import { Unusable } from "./journal.js";

const KEY = "memagent.key";
const RETRY_MILLISECONDS = 1500;

/** A wrong or missing API key. */
export class KeyNeeded extends Unusable {}

/** What is asked about is not there. */
class Missing extends Unusable {}

const REFUSALS = { 401: KeyNeeded, 404: Missing };

/** Talks to the server that the page came from, with an API key if it has one. */
export class Server {
  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(value) {
    sessionStorage.setItem(KEY, value.trim());
  }

  /** The reply to a request as JSON. Throws `Unusable` with what the server says. */
  async ask(path, options = {}) {
    return (await this.request(path, options)).json();
  }

  async request(path, options = {}) {
    const headers = { ...options.headers, ...(this.key && { Authorization: `Bearer ${this.key}` }) };
    let reply;
    try {
      reply = await fetch(`v1/${path}`, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unusable("The server cannot be reached. Reads that it has begun continue when it is back.");
    }
    if (reply.ok) return reply;
    const failure = await reply.json().catch(() => null);
    const message = failure?.error?.message ?? `The server said ${reply.status}.`;
    throw new (REFUSALS[reply.status] ?? Unusable)(message);
  }

  /** Start a read of pasted text and files. */
  async start(problem, pasted, files, options) {
    const ids = [];
    try {
      for (const file of files) ids.push(await this.upload(file));
      const document = pasted ? { document: pasted } : {};
      return await this.begin({ ...options, cite: true, problem, files: ids, ...document });
    } finally {
      // The read has its own copies, which go when it is deleted.
      for (const id of ids) this.ask(`files/${id}`, { method: "DELETE" }).catch(() => {});
    }
  }

  /** Start another read of the same document, with the same options. */
  startAgain(read, problem) {
    return this.begin({ ...read.options, problem, files: [read.id] });
  }

  begin(request) {
    const headers = { "Content-Type": "application/json" };
    return this.ask("reads", { method: "POST", body: JSON.stringify(request), headers });
  }

  /** Send a file; returns its id. */
  async upload(file) {
    const body = new FormData();
    body.append("file", file);
    try {
      return (await this.ask("files", { method: "POST", body })).id;
    } catch (error) {
      await file.stream().getReader().read().catch(() => {
        throw new Unusable(`${file.name} has changed or is gone since it was chosen: choose it again.`);
      });
      throw error;
    }
  }

  /** Have a read cancelled or resumed. */
  change(id, what) {
    return this.ask(`reads/${id}/${what}`, { method: "POST" });
  }

  /**
   * The events of a read, until its end: `[name, data]`. A connection that breaks is taken up where it was; while
   * that fails, "lost" says why.
   */
  async *events(id, signal) {
    let last = 0;
    while (!signal.aborted) {
      try {
        const reply = await this.request(`reads/${id}/events?after=${last}`, { signal });
        for await (const event of eventsOf(reply.body)) {
          last = event.id ?? last;
          yield [event.name, event.data];
          if (event.name === "end") return;
        }
      } catch (error) {
        if (error.name === "AbortError" || error instanceof Missing) return;
        if (error instanceof KeyNeeded) throw error;
        if (error instanceof Unusable) yield ["lost", error.message];
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MILLISECONDS));
    }
  }
}

/** The server-sent events of a stream. */
async function* eventsOf(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const parts = (rest + piece.value).replaceAll("\r\n", "\n").split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = part.split("\n").map((line) => line.split(/: ?(.*)/s));
      const values = Object.fromEntries(fields.filter(([name]) => name));
      if (values.data === undefined) continue;
      yield {
        name: values.event ?? "message",
        id: values.id === undefined ? undefined : Number(values.id),
        data: JSON.parse(values.data),
      };
    }
  }
}
