"""The report of an experiment: figures with the numbers behind them, a verdict, and one page that holds it all."""
