-- A sample source.
CREATE DATABASE shop;
\connect shop
CREATE TABLE orders (id INT PRIMARY KEY, customer TEXT NOT NULL, price NUMERIC(10, 2) NOT NULL);
INSERT INTO orders VALUES (1, 'Ann', 12.50), (2, 'Bob', 99.00);
