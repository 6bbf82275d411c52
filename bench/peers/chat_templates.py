"""Writes test/golden/chat_templates.json: what Jinja, set up as transformers does, makes of templates.

    VENV/bin/python bench/peers/chat_templates.py test/golden/chat_templates.json

with the virtual environment of tokenizers.sh. The templates are written for this, in the manner of
each family's own.
"""
import json, sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATES = {
    'chatml': '''{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}''',
    'smollm2': '''{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}''',
    'qwen2.5': '''{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
''',
    'llama3': '''{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}''',
    'llama3.1': '''{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message, if there is one, comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
''',
    'qwen3': '''{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}''',
    'mistral': '''{%- if messages[0]["role"] == "system" %}
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
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
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
            {{- "[INST] " ~ message["content"] ~ "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
{{- " (" ~ user_messages|length ~ ")" }}
''',
    'whitespace': '''  {% if true %}
    a
  {% endif %}
{%+ if true %} b {% endif +%}

 {#- gone -#}  c {{- ' d ' -}}
  e
{% for x in [1, 2, 3] %}
  {{ x }}{% if not loop.last %},{% endif %}

{% else %}none{% endfor %}
{%- set y %} captured {{ messages|length }} {% endset -%}
[{{ y }}]  {# lone #}
end
''',
    'expressions': '''{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 }} {{ 1.5 + 1 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x', none] ~ {'k': "it's"} }} {{ (1, 2) | list }}
{{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ 'äöü'[1] }} {{ [1, 2, 3][-2:] }} {{ [1, 2, 3, 4][::2] }} {{ 'x' * 3 }}
{{ 1 if missing else 2 }} {{ 'y' if none }}| {{ missing }} {{ missing is defined }} {{ missing | default('d') }} {{ '' | default('e', true) }}
{{ 'a' in 'abc' }} {{ 2 not in [1, 2] }} {{ 'k' in {'k': 1} }} {{ not true or false and true }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ none == false }}
{{ ' x ' | trim }}|{{ '--x-' | trim('-') }}|{{ 'x,y,,z'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a.b.c'.split('.', 1) }}
{{ [1, 2] | join }} {{ ['a', 'b'] | join(', ') }} {{ 'héé' | length }} {{ {'a': 1, 'b': 2}.items() | list | length }} {{ {'a': 1} | length }}
{{ 'Hello World' | upper }} {{ 'ABC'.lower() }} {{ 'hello big world' | title }} {{ 'hELLO' | capitalize }} {{ 'a-b' | replace('-', '+') }}
{{ {'b': [1, {'c': none}], 'a': 'ü"\\n', 't': true, 'f': 1.5, 'e': [], 'o': {}} | tojson }} {{ [] | tojson }}
{{ {'b': [1, {'c': none}], 'e': []} | tojson(indent=2) }}
{{ messages | map(attribute='role') | join('/') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}
{{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 'x' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ 1 is number }} {{ true is boolean }} {{ 1 is integer }} {{ none is none }} {{ true is true }} {{ 'a' is in ['a'] }} {{ 1 is not none }}
{% for k, v in {'x': 1, 'y': 2}.items() %}{{ loop.index }}{{ k }}{{ v }}{{ loop.revindex0 }}{{ loop.previtem is defined }};{% endfor %}
{% for x in range(10) if x % 2 %}{% if x == 7 %}{% break %}{% endif %}{% if x == 3 %}{% continue %}{% endif %}{{ x }}/{{ loop.length }} {% endfor %}
{% for c in 'añb' %}{{ c }}.{% endfor %}{% for k in {'q': 1} %}{{ k }}{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}
{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% set inner = x %}{% endfor %}{{ ns.n }} {{ inner is defined }} {% set a, b = 1, 2 %}{{ a }}{{ b }}
{{ "it's" }} {{ 'a\\tb\\\\n' }} {{ "x" "y" }} {{ 'abc'.startswith('ab') and 'abc'.endswith('c') }} {{ {'a': 1}.get('b', 5) }} {{ {'a': 1}.get('b') }} {{ {'a': 1}['z'] is defined }} {{ [3, 4] | first }}{{ [3, 4] | last }} {{ [1, 2, 3] | reverse | list }} {{ 'ab' | list }} {{ '12' | int + 1 }} {{ 'a b'.replace(' ', '') }} {{ '  x'.lstrip() }}| {{ -3 }} {{ -(1 + 2) }} {{ 'xay'.find('a') }} {{ ', '.join(['p', 'q']) }}''',
}

TOOL = {'type': 'function', 'function': {
    'name': 'weather', 'description': 'The weather "now" <b>& here\u00e9', 'parameters': {
        'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']}}}
CALL = {'role': 'assistant', 'content': '', 'tool_calls': [
    {'type': 'function', 'function': {'name': 'weather', 'arguments': {'city': 'K\u00f6ln', 'n': [1, 2.5, None]}}}]}
USER = {'role': 'user', 'content': ' What is 2 + 2?\n'}
SYSTEM = {'role': 'system', 'content': 'Be brief.'}
ANSWER = {'role': 'assistant', 'content': '\n4  '}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER, {'role': 'user', 'content': 'Sure? \U0001F600 <|im_end|>'}],
    [SYSTEM, USER, {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\n4'},
     {'role': 'user', 'content': ''}],
    [USER, CALL, {'role': 'tool', 'content': '{"degrees": 3}'}, {'role': 'tool', 'content': 'x'}],
    [USER, {'role': 'assistant', 'content': 'a', 'reasoning_content': '\nr\n'}],
    [ANSWER, ANSWER],
]
EXTRAS = [{}, {'tools': [TOOL]}, {'enable_thinking': False, 'date_string': '1 Jan 2025'}]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[loopcontrols])
    env.filters['tojson'] = tojson
    env.globals['raise_exception'] = raise_exception
    return env


def main():
    env, cases = environment(), []
    for name, text in TEMPLATES.items():
        compiled = env.from_string(text)
        plain = name in ('whitespace', 'expressions')
        for messages in CONVERSATIONS[:3 if plain else None]:
            for extra in EXTRAS[:1 if plain or name in ('chatml', 'smollm2', 'llama3') else None]:
                for add in (True, False):
                    given = {'tools': None, 'documents': None} | extra
                    try:
                        expected = compiled.render(messages=messages, add_generation_prompt=add,
                                                   bos_token='<s>', eos_token='</s>', **given)
                    except (jinja2.exceptions.TemplateError, TypeError):
                        expected = None
                    cases.append({'template': name, 'messages': messages, 'extra': extra,
                                  'add_generation_prompt': add, 'expected': expected})
    with open(sys.argv[1], 'w', encoding='utf-8') as file:
        json.dump({'made_by': f'bench/peers/chat_templates.py, Jinja {jinja2.__version__}',
                   'templates': {n: {'text': t, 'bos': '<s>', 'eos': '</s>'}
                                 for n, t in TEMPLATES.items()}, 'cases': cases}, file, indent=0)
        file.write('\n')
    print(len(cases), 'cases,', sum(c['expected'] is None for c in cases), 'refused')


main()
