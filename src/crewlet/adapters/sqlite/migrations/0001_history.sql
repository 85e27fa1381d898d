CREATE TABLE turns (
    sequence      INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id       TEXT NOT NULL UNIQUE,
    seat          TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    runner        TEXT NOT NULL,
    work_key      TEXT NOT NULL,
    triggers      TEXT NOT NULL,
    began_at      REAL NOT NULL,
    ended_at      REAL,
    outcome       TEXT NOT NULL DEFAULT '',
    detail        TEXT NOT NULL DEFAULT '',
    round         INTEGER NOT NULL DEFAULT 0,
    tool          TEXT NOT NULL DEFAULT '',
    progressed_at REAL NOT NULL,
    progress      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX turns_of_a_seat ON turns (seat, sequence);
CREATE INDEX turns_by_age ON turns (progressed_at);

CREATE TABLE rounds (
    turn_id       TEXT NOT NULL REFERENCES turns (turn_id) ON DELETE CASCADE,
    number        INTEGER NOT NULL,
    began_at      REAL NOT NULL,
    ended_at      REAL,
    model         TEXT NOT NULL DEFAULT '',
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (turn_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE calls (
    turn_id   TEXT NOT NULL REFERENCES turns (turn_id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    round     INTEGER NOT NULL,
    tool      TEXT NOT NULL,
    server    TEXT NOT NULL,
    is_effect INTEGER NOT NULL,
    key       TEXT NOT NULL,
    arguments TEXT NOT NULL,
    began_at  REAL NOT NULL,
    ended_at  REAL,
    is_error  INTEGER NOT NULL DEFAULT 0,
    answer    TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (turn_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE dispatches (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    seat     TEXT NOT NULL,
    triggers TEXT NOT NULL,
    answer   TEXT NOT NULL,
    reason   TEXT NOT NULL,
    at       REAL NOT NULL
) STRICT;
CREATE INDEX dispatches_of_a_seat ON dispatches (seat, sequence);
CREATE INDEX dispatches_by_age ON dispatches (at);
