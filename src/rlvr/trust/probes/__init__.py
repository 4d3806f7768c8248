"""Texts made from right answers, and what a reward and a metric pay for them.

cases       solved examples, and the verifiers that grade their texts
rewrites    answers that stay right, and edits that make them wrong
exploits    texts that must earn nothing
judge       grades all of them and counts
causes      the one fault behind many kinds
"""
