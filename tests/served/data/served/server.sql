BEGIN TRANSACTION;
CREATE TABLE files (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL,
    purpose TEXT NOT NULL, bytes INTEGER NOT NULL, created REAL NOT NULL
) STRICT;
INSERT INTO "files" VALUES(1,'file-6a5466df6850a46f8548fb8e','','notes.txt','user_data',2627,1.79568463051314044002e+09);
CREATE TABLE reads (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL, bytes INTEGER NOT NULL, request TEXT NOT NULL,
    outcome TEXT NOT NULL DEFAULT '{}'
) STRICT;
INSERT INTO "reads" VALUES(1,'read-aa3c5283c221ec7c4be5ab3c','','done',1.79568463059716081618e+09,1.79568463061151027682e+09,1.79568463066461539269e+09,2627,'{"problem": "Which facts?", "memory": "", "options": {}, "documents": [["0.txt", "notes.txt"]]}','{"result": {"answer": "FACT-1: acibgf; FACT-2: knjglc; FACT-4: mhckci; FACT-5: kmonme; FACT-7: limmnl; FACT-8: ogmhak; SEAL 2b3d1e62", "memory": "FACT-1: acibgf\nFACT-2: knjglc\nFACT-4: mhckci\nFACT-5: kmonme\nFACT-7: limmnl\nFACT-8: ogmhak\nSEAL 2b3d1e62", "problem": "Which facts?", "workflow": "overwrite", "model": "scripted", "chunks": 4, "document_tokens": 372, "calls": 5, "cut": 0, "prompt_tokens": 753, "cached_tokens": 0, "completion_tokens": 54, "cost": null, "seconds": 0.033, "stopped_early": false, "sources": ["notes.txt"], "statements": [], "refused": 0, "critical_path": 5, "passed_over": 0, "unused": 0, "estimated": false, "found": true}, "progress": {"chunks": 4, "document_tokens": 372, "passed_over": 0, "fraction": 1.0, "passes": 1, "reread": 0, "to_reread": 0, "calls": 5, "recalled": 0, "unused": 0, "cut": 0, "refused": 0, "critical_path": 5, "prompt_tokens": 753, "cached_tokens": 0, "completion_tokens": 54, "cost": null, "estimated": false, "seconds": 0.03296217299975979, "seconds_left": 0.0, "tokens_per_second": 24482.609201944335, "memory": "FACT-1: acibgf\nFACT-2: knjglc\nFACT-4: mhckci\nFACT-5: kmonme\nFACT-7: limmnl\nFACT-8: ogmhak\nSEAL 2b3d1e62", "statements": [], "done": true, "chunks_in_all": 4}}');
INSERT INTO "reads" VALUES(2,'read-53d7a0550d024ca8d112023e','','running',1.79568463069711351399e+09,1.79568463071108651166e+09,NULL,2627,'{"problem": "Which are they?", "memory": "", "options": {"cite": true}, "documents": [["0", "document"]]}','{}');
CREATE INDEX reads_by_state ON reads (state, number);
COMMIT;
