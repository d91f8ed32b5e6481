-- An in-memory database, and an exit with all of it held: with a code, the shell exits without closing the database.
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, body BLOB);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
  INSERT INTO item SELECT i, printf('item %d', i * 7919 % 200000), randomblob(200 + i % 300) FROM n;
CREATE INDEX item_name ON item(name);
.stats on
SELECT count(*) FROM item;
.exit 3
