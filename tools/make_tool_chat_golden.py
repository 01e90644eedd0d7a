#!/usr/bin/env python3
"""Writes tests/golden/chat/tools.json: chats with tools, rendered by transformers.

    pip install jinja2 transformers
    python3 tools/make_tool_chat_golden.py [output]

The templates are our own. Each writes tools and calls in the form of the models that it is named
after. "other" writes calls in a form of no model, and "plain" leaves tools out.
"""

import json
import pathlib
import sys

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather in <a> \"town\", in °C.",
        "parameters": {"type": "object", "required": ["town"], "properties": {
            "town": {"type": "string", "description": "Its name"},
            "days": {"type": "integer", "default": 1},
            "unit": {"type": ["string", "null"], "enum": ["C", "F", None]}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def call(call_id, name, **arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversation(call_ids, content):
    first, second = call_ids
    return [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": content,
         "tool_calls": [call(first, "get_weather", town="Köln\n\"x\"", days=2), call(second, "now")]},
        {"role": "tool", "tool_call_id": first, "name": "get_weather", "content": "{\"celsius\": 1.50}"},
        {"role": "tool", "tool_call_id": second, "name": "now", "content": "12:00"},
        {"role": "assistant", "content": "Cold."},
        {"role": "user", "content": "And in Bonn?"},
    ]


# Text around messages, shared by most styles.
TURN = "{{ '<|turn|>' + m.role + '\\n' }}"
END = "{{ '<|end|>\\n' }}"
CONTENT = "{% if m.content %}{{ m.content }}{% endif %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"


def style(intro, one_call, before="", after=""):
    """A template: tools as JSON lines after `intro`, calls between `before` and `after`."""
    return ("{%- if tools %}{{ '<|turn|>system\\n" + intro + "' }}"
            "{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}" + END + "{% endif %}"
            "{%- for m in messages %}" + TURN + CONTENT +
            "{% if m.tool_calls %}" + before + "{% for c in m.tool_calls %}{% set f = c.function %}" + one_call +
            "{% endfor %}" + after + "{% endif %}" + END + "{% endfor %}" + PROMPT)


TEMPLATES = {
    "hermes": style(
        "Answer with <tool_call>\\n{\"name\": <name>, \"arguments\": <object>}\\n</tool_call>.",
        "{{ '\\n<tool_call>\\n{\"name\": \"' + f.name + '\", \"arguments\": ' }}{{ f.arguments | tojson }}"
        "{{ '}\\n</tool_call>' }}"),
    "qwen-coder": style(
        "<tool_call>\\n<function=name>\\n<parameter=key>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>",
        "{{ '\\n<tool_call>\\n<function=' + f.name + '>\\n' }}{% for k, v in f.arguments | items %}"
        "{{ '<parameter=' + k + '>\\n' }}{{ v if v is string else v | tojson }}{{ '\\n</parameter>\\n' }}"
        "{% endfor %}{{ '</function>\\n</tool_call>' }}"),
    "glm": style(
        "<tool_call>{name}\\n<arg_key>{key}</arg_key>\\n<arg_value>{value}</arg_value>\\n</tool_call>",
        "{{ '\\n<tool_call>' + f.name }}{% for k, v in f.arguments.items() %}{{ '\\n<arg_key>' + k + '</arg_key>\\n"
        "<arg_value>' }}{{ v | tojson(ensure_ascii=False) if v is not string else v }}{{ '</arg_value>' }}{% endfor %}"
        "{{ '\\n</tool_call>' }}"),
    "minimax": style(
        "<minimax:tool_call>",
        "{{ '<invoke name=\"' + f.name + '\">\\n' }}{% for k, v in f.arguments.items() %}"
        "{{ '<parameter name=\"' + k + '\">' }}{{ v | tojson if v is not string else v }}{{ '</parameter>\\n' }}"
        "{% endfor %}{{ '</invoke>\\n' }}",
        before="{{ '\\n<minimax:tool_call>\\n' }}", after="{{ '</minimax:tool_call>' }}"),
    "minimax-m3": style(
        "]<]minimax[>[<tool_call>",
        "{{ ']<]minimax[>[<invoke name=\"' + f.name + '\">' }}{% for k, v in f.arguments.items() %}"
        "{{ ']<]minimax[>[<' + k + '>' }}{{ v | tojson if v is not string else v }}{{ ']<]minimax[>[</' + k + '>' }}"
        "{% endfor %}{{ ']<]minimax[>[</invoke>\\n' }}",
        before="{{ '\\n]<]minimax[>[<tool_call>\\n' }}", after="{{ ']<]minimax[>[</tool_call>' }}"),
    # Needs the arguments as text, and no content beside calls.
    "deepseek": style(
        "Tools:",
        "{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + f.name + '\\n```json\\n' + f.arguments + '\\n```"
        "<｜tool▁call▁end｜>' }}",
        before="{% if m.content is not none %}{{ raise_exception('content beside calls') }}{% endif %}"
               "{{ '<｜tool▁calls▁begin｜>' }}", after="{{ '<｜tool▁calls▁end｜>' }}"),
    "deepseek short": style(
        "Tools:",
        "{{ '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' }}{{ f.arguments if f.arguments is string else "
        "f.arguments | tojson }}{{ '<｜tool▁call▁end｜>' }}",
        before="{{ '<｜tool▁calls▁begin｜>' }}", after="{{ '<｜tool▁calls▁end｜>' }}"),
    "deepseek-dsml": style(
        "Tools:",
        "{{ '<｜DSML｜invoke name=\"' + f.name + '\">\\n' }}{% for k, v in f.arguments.items() %}"
        "{{ '<｜DSML｜parameter name=\"' + k + '\" string=\"' + ('true' if v is string else 'false') + '\">' }}"
        "{{ v if v is string else v | tojson }}{{ '</｜DSML｜parameter>\\n' }}{% endfor %}{{ '</｜DSML｜invoke>\\n' }}",
        before="{{ '\\n\\n<｜DSML｜function_calls>\\n' }}", after="{{ '</｜DSML｜function_calls>' }}"),
    "gemma": style(
        "Tools:",
        "{{ '<|tool_call>call:' + f.name + '{' }}{% for k, v in f.arguments.items() %}{{ k + ':' }}"
        "{{ '<|\"|>' + v + '<|\"|>' if v is string else v | tojson }}{{ ',' if not loop.last }}{% endfor %}"
        "{{ '}<tool_call|>' }}"),
    "kimi": style(
        "Tools:",
        "{{ '<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>' }}{{ f.arguments | tojson }}"
        "{{ '<|tool_call_end|>' }}",
        before="{{ '<|tool_calls_section_begin|>' }}", after="{{ '<|tool_calls_section_end|>' }}"),
    "mistral": style(
        "[AVAILABLE_TOOLS]",
        "{% if c.id | length != 9 %}{{ raise_exception('ids need nine characters') }}{% endif %}"
        "{{ '{\"name\": \"' + f.name + '\", \"arguments\": ' }}{{ f.arguments | tojson }}"
        "{{ ', \"id\": \"' + c.id + '\"}' }}{{ ', ' if not loop.last }}",
        before="{{ '[TOOL_CALLS] [' }}", after="{{ ']' }}"),
    "mistral short": style(
        "[AVAILABLE_TOOLS]", "{{ '[TOOL_CALLS]' + f.name + '[ARGS]' }}{{ f.arguments | tojson }}"),
    "llama": style(
        "Answer with {\"name\": function name, \"parameters\": dictionary of arguments}.",
        "{{ '{\"name\": \"' + f.name + '\", \"parameters\": ' }}{{ f.arguments | tojson }}{{ '}' }}"
        "{{ '; ' if not loop.last }}"),
    "other": style("Tools:", "{{ '!call ' + f.name + ' ' }}{{ f.arguments | tojson }}"),
    "plain": "{% for m in messages %}" + TURN + CONTENT + END + "{% endfor %}" + PROMPT +
             "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}",
}

FORMATS = {"other": "", "plain": "", "deepseek short": "deepseek", "mistral short": "mistral"}
IDS = {"kimi": ("functions.get_weather:0", "functions.now:1")}


def render(name, messages, tools, variables):
    texts, _ = render_jinja_template([messages], tools=tools, chat_template=TEMPLATES[name],
                                     add_generation_prompt=True, **TOKENS, **variables)
    return texts[0]


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/chat/tools.json"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    cases = []
    for name in TEMPLATES:
        messages = conversation(IDS.get(name, ("abcdef123", "xyz456789")), None if name == "deepseek" else "")
        if name == "deepseek":
            for item in messages[1]["tool_calls"]:
                item["function"]["arguments"] = json.dumps(item["function"]["arguments"], ensure_ascii=False)
        for tools, variables in ((TOOLS, {}), (None, {"enable_thinking": False, "list": [1, 2.5, True, None]})):
            cases.append({"template": name, "messages": messages, "tools": tools, "variables": variables,
                          "expected": render(name, messages, tools, variables)})
    golden = {
        "about": "Written by tools/make_tool_chat_golden.py: what transformers makes of these templates.",
        "versions": {"jinja2": jinja2.__version__, "transformers": transformers.__version__},
        "special_tokens": TOKENS,
        "templates": {name: {"text": text, "format": FORMATS.get(name, name)} for name, text in TEMPLATES.items()},
        "cases": cases,
    }
    output.write_text(json.dumps(golden, ensure_ascii=True, indent=0, separators=(",", ":")) + "\n", encoding="ascii")
    print(f"{len(TEMPLATES)} templates, {len(cases)} cases; {output}")


if __name__ == "__main__":
    main()
