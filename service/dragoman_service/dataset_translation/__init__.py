"""Translation of datasets (Parquet, JSONL, CSV and text files) in blocks of rows, in the processes of Ray."""
