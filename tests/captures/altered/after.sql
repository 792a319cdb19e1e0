-- Each phase alters tables, and then has rows that only fit what they have become.

-- Columns more, of several types.
ALTER TABLE customers ADD COLUMN email text;
ALTER TABLE tags ADD COLUMN aliases text[];
ALTER TABLE sessions ADD COLUMN seconds double precision;
INSERT INTO customers VALUES (10, 'new', NULL, 'new@example.org');
UPDATE customers SET email = 'old@example.org' WHERE id = 1;
DELETE FROM customers WHERE id = 2;
INSERT INTO tags VALUES ('t10', 1, '{a,b}'), ('t11', 2, NULL);
UPDATE sessions SET seconds = 0.1 WHERE id < 4;
INSERT INTO phase VALUES (1);

-- Wider numbers, keys among them.
ALTER TABLE orders ALTER id TYPE bigint, ALTER total TYPE numeric(14, 2);
ALTER TABLE items ALTER order_id TYPE bigint, ALTER count TYPE bigint;
ALTER TABLE payments ALTER amount TYPE numeric(14, 4);
ALTER TABLE addresses ALTER floor TYPE integer, ALTER street TYPE varchar(200);
ALTER TABLE ratings ALTER stars TYPE double precision;
INSERT INTO orders VALUES (5000000000, 1, 123456789012.34, NULL);
UPDATE orders SET total = total + 1 WHERE id = 3;
DELETE FROM orders WHERE id = 4;
INSERT INTO items VALUES (5000000000, 1, 'p', 6000000000);
UPDATE items SET count = count + 6000000000 WHERE order_id = 2;
INSERT INTO payments VALUES (10, 1234567890.1234, 'cash');
UPDATE payments SET amount = 0.0001 WHERE id = 1;
INSERT INTO addresses VALUES (10, repeat('long ', 30), 100000);
UPDATE addresses SET floor = 70000 WHERE id = 3;
INSERT INTO ratings VALUES (md5('x')::uuid, 0.1, 'words');
INSERT INTO phase VALUES (2);

-- What may be null now, is renamed, is dropped; a table more.
ALTER TABLE payments ALTER method DROP NOT NULL;
ALTER TABLE products RENAME label TO title;
ALTER TABLE stock DROP COLUMN note;
CREATE TABLE returns (id integer PRIMARY KEY, why text);
INSERT INTO payments VALUES (11, 1, NULL);
UPDATE payments SET method = NULL WHERE id = 2;
UPDATE products SET title = title || '!';
INSERT INTO products VALUES (10, 'titled', 1);
INSERT INTO stock VALUES (10, 1);
UPDATE stock SET count = 0 WHERE product = 1;
INSERT INTO returns SELECT n, 'why ' || n FROM generate_series(1, 5) n;
INSERT INTO phase VALUES (3);

-- A second change of the same tables, a key that changes, and a table that is emptied.
ALTER TABLE customers ADD COLUMN points integer;
ALTER TABLE sessions ALTER seconds TYPE numeric(20, 6);
ALTER TABLE tags ALTER uses TYPE bigint;
INSERT INTO customers VALUES (11, 'points', NULL, NULL, 7);
UPDATE customers SET id = 12 WHERE id = 3;
UPDATE tags SET uses = 9000000000 WHERE name = 't1';
UPDATE returns SET why = NULL WHERE id = 1;
DELETE FROM returns WHERE id = 2;
TRUNCATE visits;
INSERT INTO visits VALUES (1, '/again', timestamp '2025-01-01 00:00:00.000001');
INSERT INTO phase VALUES (4);

-- The recorder ends with this.
SELECT pg_logical_emit_message(true, 'capture', 'end');
