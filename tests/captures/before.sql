-- The tables, and the rows that are there when the connector starts: they come as a snapshot.
--
-- What Debezium itself loses is not in here, since no reader can bring it back: null in a nullable
-- column that has a default (it arrives as the default), NaN and infinities of a numeric (null),
-- infinite dates and moments, moments before 1582 in arrays (days too early), and arrays of more
-- than one dimension.

CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');

CREATE TABLE everything (
    id bigint PRIMARY KEY,
    small smallint,
    whole integer,
    big bigint,
    exact numeric(38, 10),
    price numeric(5, 2) NOT NULL,
    loose numeric,
    flag boolean,
    near real,
    nearer double precision,
    label text,
    code varchar(20),
    padded char(5),
    blob bytea,
    born date,
    at timestamp,
    at_millis timestamp(3),
    seen timestamptz,
    clock time,
    ref uuid,
    doc jsonb,
    feeling mood,
    tags text[],
    numbers integer[],
    days date[],
    amounts numeric(12, 2)[],
    moments timestamp[],
    zoned timestamptz[],
    long_text text,
    long_blob bytea
);
-- With the whole old row in the log, the connector knows what an update has not changed.
ALTER TABLE everything REPLICA IDENTITY FULL;

-- By default the log holds of an old row its key alone.
CREATE TABLE partial (
    shelf text,
    place integer,
    count integer NOT NULL,
    long_text text,
    long_blob bytea NOT NULL,
    tags text[],
    PRIMARY KEY (shelf, place)
);

-- Long values lie outside their rows as they are, so that they pack well into the recording.
ALTER TABLE everything ALTER long_text SET STORAGE EXTERNAL, ALTER long_blob SET STORAGE EXTERNAL;
ALTER TABLE partial ALTER long_text SET STORAGE EXTERNAL, ALTER long_blob SET STORAGE EXTERNAL,
    ALTER tags SET STORAGE EXTERNAL;

-- It is emptied later. Nothing is known of a truncated row but that it was there before.
CREATE TABLE emptied (id integer PRIMARY KEY, label text);

INSERT INTO emptied SELECT n, 'of the snapshot' FROM generate_series(1, 5) AS n;

INSERT INTO everything VALUES
    (1, -32768, -2147483648, -9223372036854775808,
     -9999999999999999999999999999.9999999999, -999.99, -0.001, false, '-3.4028235e38',
     '-1.7976931348623157e308', '', '', '', '', '0001-01-01', '0001-01-01 00:00:00',
     '0001-01-01 00:00:00', '0001-01-01 00:00:00+00', '00:00:00',
     '00000000-0000-0000-0000-000000000000', '{}', 'sad', '{}', '{}', '{}', '{}', '{}', '{}',
     '', ''),
    (2, 32767, 2147483647, 9223372036854775807,
     9999999999999999999999999999.9999999999, 999.99, 12345678901234567890.123456, true,
     '3.4028235e38', '1.7976931348623157e308', E'tab\t, "quotes", back\\slash,\nline, € é 漢字 🙂 \u0001',
     'é€🙂', 'ab', '\x00ff7f80', '9999-12-31', '9999-12-31 23:59:59.999999',
     '9999-12-31 23:59:59.999', '9999-12-31 23:59:59.999999+00', '23:59:59.999999',
     'ffffffff-ffff-ffff-ffff-ffffffffffff', '"null"', 'glad', '{a,NULL,"",é🙂,"x,y"}',
     '{-2147483648,NULL,2147483647}', '{0001-01-01,NULL,9999-12-31}',
     '{-9999999999.99,NULL,0.1}', '{1900-01-01 00:00:00.000001,NULL}', '{2024-02-29 12:00:00.5+02}',
     repeat('long é ', 2000),
     decode(repeat('00ff10', 3000), 'hex')),
    (3, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (-9223372036854775808, 0, 0, 0, 0.0000000001, 0.01, 0, true, '1e-45', '5e-324', ' ', 'null',
     'null', 'null', '1582-10-04', '1582-10-04 12:00:00.000001', '1582-10-04 12:00:00.001',
     '1582-10-04 12:00:00.000001+00', '12:00:00.000001', '123e4567-e89b-12d3-a456-426614174000',
     'null', 'ok', '{NULL}', '{0}', '{1582-10-15}', '{0}',
     '{}', NULL, repeat('x', 9000), NULL),
    (9223372036854775807, 1, 1, 1, -0.0000000001, -0.01, 1e30, false, 'NaN', 'NaN', 'NaN', '0',
     '0', '0', '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999',
     '1969-12-31 23:59:59.999999+00', '00:00:00.000001', NULL, '[1.10, {"b": 1, "a": null}]', 'ok',
     '{"NULL"}', '{1}', '{1970-01-01}', NULL, NULL, NULL, NULL,
     decode(repeat('ab', 9000), 'hex'));

INSERT INTO partial
SELECT 'top', place, 0, repeat('t' || place, 5000), decode(repeat('0' || place, 9000), 'hex'),
       ARRAY[repeat('a', 5000), repeat('b', 5000)]
FROM generate_series(1, 4) AS place;
