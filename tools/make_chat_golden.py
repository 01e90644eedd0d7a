#!/usr/bin/env python3
"""Writes tests/golden/chat/cases.json: chat templates rendered by transformers.

    pip install jinja2 transformers
    python3 tools/make_chat_golden.py [output]

Every template here is our own. STYLES are whole templates built like the ones that models are
published with; CONSTRUCTS are small ones, each about one thing. "expected" is what transformers
makes of them, or "fails": true where it raises.
"""

import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

CONVERSATIONS = {
    "one": [("user", "Hi")],
    "system": [("system", "Be brief.\n"), ("user", "Hello\n")],
    "turns": [("system", "Rules"), ("user", " first "), ("assistant", "answer\n\n"), ("user", "next")],
    "thinking": [("user", "1+1?"), ("assistant", "<think>\nadd them\n</think>\n\n2"), ("user", "Thanks")],
    "ends_with_thinking": [("user", "go"), ("assistant", "<think>\nplan\n</think>\n\ndone")],
    "empty": [("system", ""), ("user", ""), ("assistant", ""), ("user", "")],
    "unicode": [("user", "Grüße, 日本語 🙂 'q' \"d\" <&> \\ \t"), ("assistant", "нет\u2028\u00a0"), ("user", "é\n")],
    "tool": [("user", "time?"), ("assistant", "calling"), ("tool", "12:00"), ("tool", "UTC"), ("assistant", "noon")],
    "starts_wrong": [("assistant", "me first")],
    "two_users": [("user", "a"), ("user", "b")],
    "none": [],
}

STYLES = {
    "chatml": """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    # Default system text and a tools branch that is not taken.
    "tools_branch": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\nCall with {\\"name\\": <name>, \\"arguments\\": <object>}<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou answer questions.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n[result]\\n' }}
        {{- message.content }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # Searches backwards for the last question and drops earlier thoughts.
    "reasoning": """{%- set state = namespace(searching=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}
    {%- set at = (messages|length - 1) - loop.index0 %}
    {%- if state.searching and m.role == "user" and m.content is string and not(m.content.startswith('[result]') and m.content.endswith('[/result]')) %}
        {%- set state.searching = false %}
        {%- set state.last = at %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.content is string %}
        {%- set text = m.content %}
    {%- else %}
        {%- set text = '' %}
    {%- endif %}
    {%- if m.role == "assistant" %}
        {%- set thought = '' %}
        {%- if m.reasoning_content is string %}
            {%- set thought = m.reasoning_content %}
        {%- elif '</think>' in text %}
            {%- set thought = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > state.last and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>' + m.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + text.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + m.role + '\\n' + text }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == "tool" %}
        {%- if loop.first or loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n[result]\\n' + text + '\\n[/result]' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    # Square brackets, roles that have to alternate.
    "instruct": """{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles have to alternate: user, assistant, user, ...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant can speak!') }}{% endif %}{% endfor %}""",
    "instruct_system": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Turns have to alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
{{- "|" ~ (user_messages|length) ~ (user_messages[-1].content if user_messages) }}
""",
    "headers": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|header|>' + message['role'] + '<|/header|>\\n\\n'+ message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\\n\\n' }}{% endif %}""",
    "headers_dated": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and false %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block takes the system text out, so that it can be placed. #}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|header|>system<|/header|>\\n\\n" }}
{%- if tools is not none %}{{- "Tools: on\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|/header|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|header|>ipython<|/header|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|/header|>\\n\\n' }}
{%- endif %}
""",
    "wide_bars": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜Fragender｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}{{'<｜Nichts｜>'}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}{{'<｜Ergebnis▁Ende｜>' + message['content'] + '<｜Ende｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Antwort｜>' + content + '<｜Ende｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜Ergebnis｜>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n<｜Ergebnis｜>' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜Ergebnis▁Ende｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Antwort｜>'}}{% endif %}""",
    # Macros that describe types, channels.
    "channels": """{#- types as text -#}
{%- macro type_text(spec, required, nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {{- type_text(spec['items'], required) + "[]" }}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
        {%- if nullable -%}{{- " | null" }}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type[0] -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.oneOf -%}
        {%- for variant in spec.oneOf -%}
            {{- type_text(variant, required) -}}
            {%- if not loop.last %}{{- " | " }}{% endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- spec.type or "any" }}{{- " // default: " ~ spec.default|tojson if spec.default is defined }}
    {%- endif -%}
{%- endmacro -%}
{%- macro start(role, channel=none) %}<|start|>{{ role }}{% if channel %}<|channel|>{{ channel }}{% endif %}<|message|>{% endmacro -%}
{{- start("system") }}Types:
{{ type_text({"type": "array", "items": {"type": "string"}}, []) }}
{{ type_text({"type": ["string", "null"]}, []) }}
{{ type_text({"oneOf": [{"type": "number", "default": 1.5}, {"type": "array"}]}, [], nullable=true) }}<|end|>
{%- for message in messages -%}
    {%- if message.role == "assistant" -%}
        {%- if "thinking" in message and message.thinking -%}{{- raise_exception("unexpected") -}}{%- endif -%}
        {{- start("assistant", "final") + message.content }}{{ "<|return|>" if loop.last and not add_generation_prompt else "<|end|>" }}
    {%- elif message.role in ["system", "developer"] -%}
        {{- start("developer") }}# Instructions

{{ message.content }}<|end|>
    {%- else -%}
        {{- start(message.role, channel="commentary" if message.role == "tool") ~ message.content ~ "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
""",
}

CONSTRUCTS = [
    # Rounding, and formatting with '%'.
    "{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ -2.5|round }} {{ 7|round }} {{ 7|round(2) }}",
    "{{ 2.341|round(2, 'ceil') }} {{ -2.341|round(1, 'floor') }} {{ 7|round(0, 'ceil') }}",
    "{{ 1e22|round(3) }} {{ true|round }} {{ 0.05|round(method='ceil', precision=1) }}",
    "{{ 'a'|round }}",
    "{{ 1.5|round(0, 'up') }}",
    "{{ '%s and %s: %d%%'|format('a', [1, 'b'], 5.9) }} {{ '%5s|%-4s|é%3s'|format('x', 'y', 'é') }}",
    "{{ '%05d|%+d|%-6d|%6.2f|%.0f|%f'|format(42, 3, 7, 3.14159, 2.5, 1) }}",
    "{{ '%(who)s is %(age)03d'|format(who='Ann', age=7) }} {{ 'plain'|format }}",
    "{{ '%s'|format }}",
    "{{ '%d'|format('five') }}",
    "{{ '%s'|format(1, 2) }}",
    # Arguments out of lists and dicts, and macros that take any.
    "{{ range(*[1, 7, 2])|list }} {{ '{}-{}'.format(*['a', 'b']) }} {{ dict(**{'k': 1}, ) }} {{ dict(a=1, **{'k': 2}) }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(*[1, 3, 4, 5], c=6) }}{{ m(*'xyz', **{'q': 1}) }}{{ m(b=3, *[1]) }}",
    "{% macro m(a) %}{{ a }}{{ kwargs.items()|list }}{% endmacro %}{{ m(1, a=2, b=3) }}{{ m(**{'a': 4}) }}{{ m(*nothing) }}",
    "{% macro m() %}{% macro inner() %}{{ varargs|length }}{% endmacro %}{{ inner(1, 2) }}{{ varargs is defined }}{% endmacro %}{{ m(9) }}",
    "{% macro m() %}{{ caller(*varargs, **kwargs) }}{% endmacro %}{% call(x, y=0) m(1, y=2) %}{{ x }}{{ y }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{{ kwargs }}{% endmacro %}{{ m() }}{{ m(caller=1) }}",
    "{% macro m() %}-{% endmacro %}{% call m() %}{% endcall %}",
    "{{ ['b', 'a']|sort(*[true]) }} {{ 'a-b'|replace(*('-', '+')) }} {{ 3 is divisibleby(*[3]) }} {{ [1, 2]|join(**{'d': ';'}) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1, 2]) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(a=1, **{'a': 2}) }}",
    "{{ dict(**[1]) }}",
    "{{ dict(**nothing) }}",
    "{{ dict(**{1: 2}) }}",
    "{{ range(*5) }}",
    "{{ range(*[1], 2) }}",
    "{{ range(*[1], *[2]) }}",
    "{{ dict(**{}, a=1) }}",
    "{{ dict(**{}, **{}) }}",
    "{{ range(**{}, *[1]) }}",
    # White space control.
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a  {%- if true -%}  b  {%- endif -%}  c",
    "a  {%+ if true +%}\n  b\n  {%+ endif %}\n c",
    "{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\nend\n\n",
    "  {# note #}\nx {# another #} y\n  {#- third -#}  z",
    "x{% raw %} {{ not }} {% this %} {# kept #} {% endraw %}y",
    "x\n  {%- raw -%}  {{ a }}  {%- endraw -%}  \n y",
    "\n  {% raw %}\n  {{ b }}\n  {% endraw %}\nz",
    "{{- 1 -}}   {{- 2 -}}\n{{ 3 }}\n\n",
    "line\r\nnext{% if true %}\r\nthird\r{% endif %}\n",
    "{{ '{{' }}{{ \"%}\" }}{{ '#}' }} { % } {",
    "{%if true%}tight{%endif%}{{1}}",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'k':{}}}}",
    "tab\t{%- set x = 1 %}\t{{ x }}\n \n{%- if x %} \n q{% endif %}",
    "\u00a0{%- if true %}\u2003{% endif -%}\u2028x",
    # Literals.
    r"""{{ 'a\n\t\\\'\"\x41\u00e9\U0001F642\101\q\é' }}{{ "dq 'in'" 'joined' }}""",
    "{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1.5 }} {{ 2e3 }} {{ 1e16 }} {{ 1.0e-5 }} {{ 0.1 + 0.2 }} {{ 00 }}",
    "{{ true }} {{ True }} {{ false }} {{ none }} {{ None }}",
    "{{ [1, 'a', [2.0, none], {'k': 'v', 1: (1,), 'e': ()}] }} {{ () }} {{ (1, 2) }} {{ 1, 2 }}",
    "{{ ['it\\'s', 'say \"x\"', 'both \\' \"', 'nl\\n', 'tab\\t', '\\x00\\x7f\\xa0\\u200b', 'é🙂'] }}",
    "{{ {'a': 1, 'a': 2, 1: 'x', true: 'y', 1.0: 'z'} }}",
    # Operators.
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 3 }} {{ 2 ** 3 ** 2 }} {{ 2 ** -1 }} {{ -2 ** 2 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + 1.5 }} {{ true + true }} {{ 3 - 5 }} {{ +5 }} {{ 5 * 'ab' }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }}",
    "{{ 1 ~ 'a' ~ none ~ 2.5 ~ [1] ~ undefined_name }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ 'a' == 1 }}",
    "{{ 'x' in 'axb' }} {{ 'x' not in ['x'] }} {{ 1 in {1: 2} }} {{ 2 in (1, 2) }} {{ 'a' in none_name }}",
    "{{ not true or true and false }} {{ 1 and 2 }} {{ 0 or 'd' }} {{ not 0 }} {{ '' or none }} {{ not not 1 }}",
    "{{ 'yes' if 1 else 'no' }}{{ 'only' if 0 }}|{{ 'a' if 0 else 'b' if 0 else 'c' }}",
    "{{ -1|abs }} {{ 1 + 2|string|length }} {{ 'a' + 1|string }} {{ not x is defined }} {{ 2 * 3 is even }}",
    "{{ 1 if true }}{{ (1 if false) is undefined }}",
    # Slices and subscripts.
    "{{ messages[::-1]|map(attribute='role')|list }} {{ [1,2,3,4,5][1:4:2] }} {{ [1,2,3][::-2] }} {{ [1,2,3][-2:] }} {{ [1,2,3][:-5] }} {{ [1,2,3][5:] }}",
    "{{ 'héllo🙂'[1:3] }} {{ 'héllo🙂'[::-1] }} {{ 'héllo🙂'[-1] }} {{ 'abc'[0] }} {{ 'abc'[9] is defined }} {{ (1,2,3)[1:] }} {{ 'abc'[none:2] }}",
    "{{ {'a': 1}.a }} {{ {'a': 1}['a'] }} {{ {'a': 1}.b is defined }} {{ {'items': 1}['items'] }} {{ [[1, 2], [3]].0.1 }} {{ {0: 'z'}[0] }} {{ [1][true - 1] }}",
    "{{ range(3)|list }} {{ range(1, 10, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(4)[1:]|list }} {{ range(3)[-1] }} {{ 2 in range(3) }}",
    # Loops.
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {{ loop.previtem.content if loop.previtem is defined }}>{{ loop.nextitem.content if loop.nextitem }};{% else %}no user{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for i in range(9) if ns.n < 3 %}{% set ns.n = ns.n + 1 %}{{ i }}{{ loop.last }} {% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1] %}{% continue %}{% else %}else{% endfor %}{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{% else %}no{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}",
    "{% for c in 'héé' %}{{ c }}-{% endfor %}{% for x in undefined_name %}x{% else %}nothing{% endfor %}",
    "{% for x in [1,2,3] %}{{ loop.cycle('odd', 'even') }}{{ loop.changed(x // 2) }} {% endfor %}",
    "{% for x in [1,2] %}{% for y in [3,4] %}{{ x }}{{ y }}{{ loop.index }}{{ loop.depth }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% set x = 'outer' %}{% for i in [1,2] %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}{% if true %}{% set x = 'changed' %}{% endif %}{{ x }}",
    "{% for x in x_list|default([1]) %}{{ x }}{% endfor %}{{ x is defined }}{{ loop is defined }}",
    "{% for m in messages recursive_name %}{% endfor %}",
    # set, with, macros, calls, filters as blocks.
    "{% set a, b = 1, 'z' %}{{ a }}{{ b }}{% set c = [1, 2] %}{{ c }}{% set d %}block {{ a }}\n{% endset %}[{{ d }}]{% set e | upper | trim %} shout {% endset %}{{ e }}",
    "{% set ns = namespace({'p': 1}, q=2) %}{% set ns.r = ns.p + ns.q %}{{ ns.r }}{{ ns['q'] }}{{ ns.missing is defined }}{% set ns.t %}text{% endset %}{{ ns.t }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set a = 9 %}{{ a }}{% endwith %}{{ a is defined }}",
    "{% macro m(a, b=2, c=a) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(a=4, c=5) }}{{ m() }}{{ m('x')|length }}",
    "{% macro outer(n) %}{{ n }}{% if n > 0 %},{{ outer(n - 1) }}{% endif %}{% endmacro %}{{ outer(4) }}",
    "{% set prefix = 'p' %}{% macro m() %}{{ prefix }}{{ later }}{% endmacro %}{% set later = 'l' %}{{ m() }}",
    "{% macro box(title) %}<{{ title }}>{{ caller('in') }}{{ caller is defined }}</>{% endmacro %}{% call(x) box('t') %}body {{ x }}{% endcall %}{% macro plain() %}{{ caller() }}{% endmacro %}{% call plain() %} q {% endcall %}",
    "{% filter upper %}loud {{ messages|length }}{% endfilter %}{% filter replace('a', 'b')|trim %} banana {% endfilter %}",
    "{% generation %}{% set inner = 1 %}kept{% endgeneration %}{{ inner is defined }}",
    "{% print 1, 'b' %}{% if false %}{% elif true %}elif{% else %}else{% endif %}",
    "{{ dict(a=1, b=[2]) }} {{ dict([('k', 'v')]) }} {{ dict({'x': 1}, y=2)|length }}",
    # Filters.
    "{{ '  x '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ 'aBc'|upper }}|{{ 'ÄÖ'|lower }}|{{ 'hello world'|capitalize }}|{{ 'hello wORLD-two (three'|title }}",
    "{{ {'a': [1, 2.5, none, true, 'é\\n\"'], 'b': {}, 'c': []}|tojson }} {{ '<&>'|tojson }} {{ 'é🙂\\x7f\\x01'|tojson(ensure_ascii=true) }}",
    "{{ {'b': [1, {'x': []}], 'a': {}}|tojson(indent=2) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ [1, 2]|tojson(separators=(',', ':')) }} {{ [1, (2, 3)]|tojson(indent=0) }} {{ {1: 2, true: 3, none: 4, 1.5: 5}|tojson }}",
    "{{ messages|length }} {{ 'é🙂'|length }} {{ {'a': 1}|length }} {{ nothing|length }} {{ [1, 2]|count }}",
    "{{ nothing|default('d') }} {{ ''|default('e') }}|{{ ''|default('f', true) }} {{ none|d('g') }} {{ nothing|default }}|{{ 0|default('h', boolean=true) }}",
    "{{ [1, 'b', none]|join(', ') }} {{ 'abc'|join('-') }} {{ messages|join('|', attribute='role') }} {{ []|join }}|{{ [1, 2]|join }}",
    "{{ [3, 1, 2]|first }} {{ [3, 1, 2]|last }} {{ []|first is defined }} {{ 'héy'|last }} {{ {'a': 1}|first }} {{ [1, 2]|reverse|list }} {{ 'abc'|reverse }}",
    "{{ 'abc'|list }} {{ {'a': 1}|list }} {{ (1, 2)|list }} {{ 12|string + '3' }} {{ '12'|int + 1 }} {{ ' 7.9 '|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.99|int }} {{ '1e3'|float }} {{ '2'|float }} {{ none|int }}",
    "{{ {'b': 1, 'A': 2}|items|list }} {{ {'b': 1, 'A': 2}|dictsort }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'b': 1, 'A': 2, 'a': 3}|dictsort(true) }} {{ nothing|items|list }}",
    "{{ 'a-b-c'|replace('-', '+') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab'|replace('', '.') }} {{ 'x'|safe }} {{ 1|string|replace(1, 'one') }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }} {{ messages|rejectattr('role', 'in', ['user', 'system'])|list|length }} {{ messages|selectattr('missing')|list }} {{ messages|selectattr('missing', 'defined')|list }}",
    "{{ [1, 2, 3, 4]|select('odd')|list }} {{ [0, 1, '', 'a']|reject|list }} {{ [1, 2, 3]|select('gt', 1)|list }} {{ ['a', 'B']|map('upper')|join }} {{ [' a ', 'b ']|map('trim')|list }} {{ [{'n': {'m': 1}}, {}]|map(attribute='n.m', default=0)|list }}" ,
    "{{ [{'n': 1}, {}]|map(attribute='n', default='-')|list }} {{ [[1, 2], [3, 4]]|map(attribute=1)|list }} {{ [[1, 2]]|map('first')|list }} {{ ['b', 'C', 'a']|map('default', 'x')|list }}",
    "{{ ['b', 'C', 'a']|sort }} {{ ['b', 'C', 'a']|sort(case_sensitive=true) }} {{ [3, 1, 2]|sort(reverse=true) }} {{ messages|sort(attribute='role')|map(attribute='content')|list }} {{ ['a', 'A', 'b']|unique|list }} {{ [3, 1]|min }} {{ ['a', 'B']|max }} {{ [1, 2.5]|sum }} {{ []|min is defined }} {{ -1.5|abs }}",
    "{{ 'one\\ntwo\\n\\nthree'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent('> ', blank=true) }}|{{ ''|indent(first=true) }}",
    "{% set gen = [1, 2]|map('string') %}{{ 'y' if gen else 'n' }}{{ gen|list }}{{ gen|list }}{{ 1 if []|select else 0 }}",
    # Tests.
    "{{ 1 is number }}{{ true is number }}{{ true is boolean }}{{ 1 is boolean }}{{ 1 is integer }}{{ true is integer }}{{ 1.0 is float }}{{ 'a' is string }}{{ none is none }}{{ 0 is false }}{{ false is false }}{{ true is true }}",
    "{{ [] is sequence }}{{ 'a' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}{{ {} is mapping }}{{ [] is mapping }}{{ 1 is iterable }}{{ 'a' is iterable }}{{ nothing is iterable }}{{ [1]|map('abs') is sequence }}{{ raise_exception is callable }}{{ 1 is callable }}",
    "{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}{{ 1 is in [1] }}{{ 2 is not in [1] }}{{ 1 is equalto 1 }}{{ 1 is eq 2 }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 1 is ge(2) }}{{ 2 is greaterthan 1 }}",
    "{{ x is defined }}{{ x is undefined }}{{ messages is defined }}{{ tools is none }}{{ documents is defined }}{{ tools is not none and tools|length > 0 }}{{ messages[99] is defined }}",
    "{{ bos_token }}{{ eos_token is defined }}{{ unk_token is defined }}{{ pad_token|length }}",
    # Methods.
    "{{ ' a b '.strip() }}|{{ 'xxa'.lstrip('x') }}|{{ 'axx\\n'.rstrip() }}|{{ 'aüü'.rstrip('ü') }}|{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}{{ 'hELLO'.capitalize() }}{{ \"they're ok\".title() }}",
    "{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b  c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b  c '.rsplit(none, 1) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ ''.split(',') }} {{ ''.split() }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.startswith('') }} {{ 'hábc'.find('b') }}{{ 'abcb'.rfind('b') }}{{ 'a'.find('z') }}{{ 'banana'.count('an') }}{{ 'ab'.count('') }}{{ 'abc'.index('c') }}",
    "{{ 'abc'.replace('b', 'X') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ '-'.join(['a', 'b']) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'k'.partition('=') }} {{ 'k'.rpartition('=') }} {{ ' \\t'.isspace() }}",
    "{{ '{} and {}'.format(1, 'b') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x} {{}}'.format(x=[1]) }}",
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 'd') }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }} {{ {'a': 1}.items()|list }} {{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ 'a' in {'a': 1}.keys() }} {{ {'a': 1}.items()|length }}",
    # Failures.
    "{{ raise_exception('message ' ~ 1) }}",
    "{{ nothing.attribute }}",
    "{{ nothing + 'a' }}",
    "{{ nothing() }}",
    "{{ 'a' + 1 }}",
    "{{ none|length }}",
    "{{ 1 // 0 }}",
    "{{ [] < 1 }}",
    "{% for x in 5 %}{% endfor %}",
    "{{ messages.append(1) }}",
    "{{ {'a': 1}.update({'b': 2}) }}",
    "{% set ns = namespace(_x=1) %}",
    "{% set y = 1 %}{% set y.z = 2 %}",
    "{{ nothing|tojson }}",
    "{{ range(100001)|length }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{{ 'a' in 1 }}",
    "{% if false %}{{ 1|nosuchfilter }}{% endif %}fine",
    "{% if true %}{{ 1|nosuchfilter }}{% endif %}",
    "{{ 1|nosuchfilter }}",
    "{% if %}{% endif %}",
    "{% for %}{% endfor %}",
    "{% endif %}",
    "{% if true %}",
    "{{ 'open",
    "{{ (1 }}",
    "{# open",
    "{% break %}",
    "{{ 1 is string is string }}",
    "{{ [1, 2 }}",
    "{{ a b }}",
    "{{ }}",
    "{% set 1 = 2 %}",
    "{% raw %}never closed",
    # A str beside a "safe" one is escaped, as arguments of calls are in Mistral's templates.
    """{% set arguments = {'q': '<&>'}|tojson|safe %}{{ '[TOOL]' + 'a<b' + "&'\"" + arguments }}|{{ arguments + '<' + '>' }}|{{ arguments ~ '<' }}|{{ ['<' + '>'|safe] }}""",
    "{{ '<|image_{i:d}|>'.format(i=3) }}{{ '{:d}{:d}'.format(-2, true) }}{{ '{0:d} {0}'.format(7) }}",
    "{{ '{:d}'.format('7') }}",
    "{{ '{:d}'.format(7.0) }}",
]


def render(template, messages, prompt):
    """The expectation of a case: {"expected": text} or {"fails": true}."""
    try:
        texts, _ = render_jinja_template(
            [[dict(message) for message in messages]],
            chat_template=template,
            add_generation_prompt=prompt,
            **TOKENS,
        )
    except (jinja2.TemplateError, SyntaxError, TypeError, ValueError, ArithmeticError, LookupError):
        return {"fails": True}
    return {"expected": texts[0]}


def messages_of(name):
    return [{"role": role, "content": content} for role, content in CONVERSATIONS[name]]


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/chat/cases.json"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    templates = dict(STYLES)
    templates |= {f"construct {i}": text for i, text in enumerate(CONSTRUCTS)}
    cases = []
    for name, template in templates.items():
        style = name in STYLES
        for conversation in CONVERSATIONS if style else ["turns"]:
            for prompt in [True, False] if style else [True]:
                case = {"template": name, "messages": conversation, "add_generation_prompt": prompt}
                cases.append(case | render(template, messages_of(conversation), prompt))
    golden = {
        "about": "Written by tools/make_chat_golden.py: what transformers makes of these templates.",
        "versions": {"jinja2": jinja2.__version__, "transformers": transformers.__version__},
        "special_tokens": TOKENS,
        "templates": templates,
        "conversations": {name: messages_of(name) for name in CONVERSATIONS},
        "cases": cases,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(golden, ensure_ascii=True, indent=0, separators=(",", ":")).split("\n")
    output.write_text("\n".join(lines) + "\n", encoding="ascii")
    fails = sum("fails" in case for case in cases)
    print(f"{len(templates)} templates, {len(cases)} cases, {fails} of which fail; {output}")


if __name__ == "__main__":
    main()
