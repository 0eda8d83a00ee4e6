"""The promises of `table`, kept with Spark: PyIceberg does the DDL, Spark moves rows. Only here is pyspark imported."""
