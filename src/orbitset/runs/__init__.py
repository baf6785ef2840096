"""Trainings: one, a study of many, a search of settings; and a finished one opened again."""
