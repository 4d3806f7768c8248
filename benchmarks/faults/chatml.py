"""Chat templates without a fault, and their special tokens."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|bos|>"]
PAD, START, END, BOS = range(4)
HEAD, CONTENT = "{% for m in messages %}", "{{ m['content'] }}"
HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = f"{HEAD}<|im_start|>{{{{ m['role'] }}}}\n{CONTENT}<|im_end|>\n{{% endfor %}}{HEADER}"
THINKS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
CALLS = """{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}"""
HERMES = """{% set given = messages %}{% if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% set given = messages[1:] %}{% endif %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call as <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}{% for m in given %}{% if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}CALLS<|im_end|>
{% endif %}{% endfor %}HEADER""".replace("CALLS", CALLS).replace("HEADER", HEADER)
