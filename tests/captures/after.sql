-- What happens while the connector follows the log.

INSERT INTO everything (id, price, near, nearer, label, seen, at) VALUES
    (10, 1, 'Infinity', 'Infinity', 'é', '2024-02-29 23:30:00.5-09:30', '2024-02-29 12:34:56.789012'),
    (11, 2, '-Infinity', '-Infinity', 'e' || U&'\0301', '1900-01-01 00:00:00+00', '1900-01-01'),
    (12, 3, '-0', '-0', U&'\+01F600\FEFF\2028', '2262-04-11 23:47:16.854776+00', '2262-04-12'),
    (13, 4, 0.1, 0.1, 'short', '1677-09-21 00:12:43.145223+00', '1677-09-21 00:12:43.145223'),
    (14, 5, '1.1754944e-38', '2.2250738585072014e-308', NULL, NULL, NULL);

-- What began as extremes becomes something else, and the other way round.
UPDATE everything SET (small, whole, big, exact, loose) =
    (32767, 2147483647, 9223372036854775807, 9999999999999999999999999999.9999999999, 0.10)
WHERE id = 3;
UPDATE everything SET (exact, loose, label, blob, tags, at) = (0, 100, NULL, NULL, NULL, NULL)
WHERE id = 1;
UPDATE everything SET label = '' WHERE label IS NULL AND id = 3;

-- The long values are not changed, and so not in the log but as part of the old row.
UPDATE everything SET whole = whole - 1 WHERE id = 2;
UPDATE everything SET flag = NOT flag WHERE id > 9223372036854775800;
UPDATE everything SET long_text = long_text || '!' WHERE id < 0;

-- Several changes of one row in one transaction, and one that is never committed.
BEGIN;
INSERT INTO everything (id, price, label) VALUES (20, 1, 'first');
UPDATE everything SET label = 'second' WHERE id = 20;
DELETE FROM everything WHERE id = 20;
INSERT INTO everything (id, price, label) VALUES (20, 2, 'third');
COMMIT;
BEGIN;
INSERT INTO everything (id, price, label) VALUES (21, 1, 'never');
UPDATE everything SET label = 'never';
ROLLBACK;

-- Keys that change: to a new one, with long values; to one that was deleted before; two by turns.
UPDATE everything SET id = 30 WHERE id = 2;
DELETE FROM everything WHERE id = 10;
UPDATE everything SET id = 10, label = 'moved' WHERE id = 11;
BEGIN;
UPDATE everything SET id = 0 WHERE id = 12;
UPDATE everything SET id = 12 WHERE id = 13;
UPDATE everything SET id = 13 WHERE id = 0;
COMMIT;

-- Deleted for good; deleted and inserted again, more than once.
DELETE FROM everything WHERE id = 14;
DELETE FROM everything WHERE id = 9223372036854775807;
INSERT INTO everything (id, price, label) VALUES (9223372036854775807, 7, 'again');
DELETE FROM everything WHERE id = 9223372036854775807;
INSERT INTO everything (id, price, label) VALUES (9223372036854775807, 8, 'and again');

-- Many rows of one transaction.
\copy (SELECT n, n * 0.01, n, n * 1e-3::float8, 'row ' || n, date '2024-01-01' + n, timestamp '2024-01-01' + n * interval '1.000001 s', md5(n::text)::uuid FROM generate_series(1001, 1150) AS n) TO many.tsv
\copy everything (id, price, whole, nearer, label, born, at, ref) FROM many.tsv
UPDATE everything SET price = price + 1 WHERE id > 1000 AND id % 10 = 0;
DELETE FROM everything WHERE id > 1000 AND id % 7 = 0;

-- A column more. One with a default would be filled in rows for which no event is sent.
ALTER TABLE everything ADD COLUMN added numeric(20, 3);
INSERT INTO everything (id, price, added) VALUES (40, 1, 12345678901234567.891), (41, 1, NULL);
UPDATE everything SET added = -0.001 WHERE id IN (1, 30);
UPDATE everything SET label = 'without the new one' WHERE id = 10;

-- Each of these leaves out one long value at least, for which a placeholder is sent...
UPDATE partial SET count = 1 WHERE place = 1;
UPDATE partial SET count = 2, long_blob = '\x02', tags = '{x}' WHERE place = 2;
UPDATE partial SET count = 3, long_text = 'l', tags = '{x}' WHERE place = 3;
UPDATE partial SET count = 4, long_text = 'l', long_blob = '\x04' WHERE place = 4;
-- ...and each of these sends the row whole.
UPDATE partial SET long_text = 'p', long_blob = '\x01', tags = '{y}' WHERE place = 1;
UPDATE partial SET long_text = 'q' WHERE place = 2;
UPDATE partial SET long_blob = '\x03' WHERE place = 3;
DELETE FROM partial WHERE place = 4;
INSERT INTO partial VALUES ('é🙂', 1, 1, NULL, '', '{}'), ('é🙂', 2, 1, '', '\x00', NULL);
UPDATE partial SET place = 4 WHERE place = 2 AND shelf = 'é🙂';

-- All rows at once, in one transaction with the first of those that take their place.
UPDATE emptied SET label = 'changed' WHERE id = 1;
DELETE FROM emptied WHERE id = 2;
INSERT INTO emptied VALUES (6, 'of the log');
BEGIN;
TRUNCATE emptied;
INSERT INTO emptied VALUES (2, 'deleted before'), (3, 'there before'), (7, 'never there');
COMMIT;
UPDATE emptied SET label = 'and changed' WHERE id = 3;
DELETE FROM emptied WHERE id = 7;

-- The recorder ends with this.
SELECT pg_logical_emit_message(true, 'capture', 'end');
