"""Inputs and outputs shared by all front ends: sessions, tasks, questions, schedules."""
