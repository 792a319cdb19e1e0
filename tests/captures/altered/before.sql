-- Twelve tables of a shop, one of which comes later; `phase` says where the story stands.

CREATE TABLE phase (id integer PRIMARY KEY);
CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL, born date);
CREATE TABLE orders (
    id integer PRIMARY KEY, customer integer NOT NULL, total numeric(10, 2), placed timestamptz
);
CREATE TABLE items (
    order_id integer, line smallint, product text, count integer, PRIMARY KEY (order_id, line)
);
CREATE TABLE payments (id bigint PRIMARY KEY, amount numeric(10, 2) NOT NULL, method text NOT NULL);
CREATE TABLE products (id integer PRIMARY KEY, label text, price numeric(8, 2));
CREATE TABLE stock (product integer PRIMARY KEY, count integer, note text);
CREATE TABLE visits (id integer PRIMARY KEY, page text, at timestamp);
CREATE TABLE addresses (id integer PRIMARY KEY, street varchar(20), floor smallint);
CREATE TABLE ratings (id uuid PRIMARY KEY, stars real, words text);
CREATE TABLE tags (name text PRIMARY KEY, uses integer);
CREATE TABLE sessions (id bigint PRIMARY KEY, started timestamptz, doc jsonb);

INSERT INTO customers SELECT n, 'customer ' || n, date '1970-01-01' + n FROM generate_series(1, 9) n;
INSERT INTO orders SELECT n, n, n * 1.01, timestamptz '2024-01-01Z' + n * interval '1 hour'
    FROM generate_series(1, 9) n;
INSERT INTO items SELECT n, m, 'p' || m, n * m FROM generate_series(1, 5) n, generate_series(1, 3) m;
INSERT INTO payments SELECT n, n + 0.5, 'card' FROM generate_series(1, 9) n;
INSERT INTO products SELECT n, 'label ' || n, n FROM generate_series(1, 9) n;
INSERT INTO stock SELECT n, n * 10, 'note ' || n FROM generate_series(1, 9) n;
INSERT INTO visits SELECT n, '/' || n, timestamp '2024-01-01' FROM generate_series(1, 9) n;
INSERT INTO addresses SELECT n, 'street ' || n, n FROM generate_series(1, 9) n;
INSERT INTO ratings SELECT md5(n::text)::uuid, n / 10::real, NULL FROM generate_series(1, 9) n;
INSERT INTO tags SELECT 't' || n, n FROM generate_series(1, 9) n;
INSERT INTO sessions SELECT n, timestamptz '2024-01-01Z', '{"n": 1}' FROM generate_series(1, 9) n;
