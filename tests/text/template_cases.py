"""Chat requests and small templates whose renderings by jinja2 are the fixtures of test_chat_template."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place — now & \"later\" <b>'s</b>",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Ort, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["c", "f"], "default": None},
                "days": {"type": "integer", "minimum": 1, "maximum": 1e2, "multipleOf": 0.5},
                "items": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, call_id="call_1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, name="get_weather", call_id="call_1"):
    return {"role": "tool", "content": text, "name": name, "tool_call_id": call_id}


CONVERSATIONS = [
    [user("Hello")],
    [system("You are terse."), user("Hello"), assistant("Hi."), user("Wie geht's? 你好 👋🏽")],
    [user("a\n\n b "), assistant("  padded  "), user("")],
    [user("Think."), assistant("<think>\nfirst\n</think>\n\nAnswer", ), user("Again")],
    [user("Think."), assistant("Answer", reasoning_content="\nbecause\n"), user("Again"), assistant("Done", reasoning_content="so")],
    [user("Weather?"), assistant("", tool_calls=[call("get_weather", {"place": "Zürich", "days": 2})]), tool("{\"t\": 20}")],
    [user("Weather?"), assistant(None, tool_calls=[call("get_weather", "{\"place\": \"Bern\"}"), call("clock", {}, "call_2")]),
     tool("sun"), tool("12:00", "clock", "call_2"), assistant("Sunny at noon."), user("Thanks")],
    [system("S"), user("Go"), assistant("Looking.", tool_calls=[call("clock", {"a": [1, 2.5, None, True], "b": {"c": "é"}})]), tool("x", "clock"),
     assistant("One more.", tool_calls=[call("clock", {})], reasoning_content="hm"), tool("y", "clock")],
    [user([{"type": "text", "text": "Look: "}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "?"}])],
    [system("A"), system("B"), user("C"), assistant("D", prefix=True)],
    [assistant("I start."), user("Why?")],
    [user("x"), user("y"), assistant("z"), assistant("w")],
    [{"role": "user", "content": "named", "name": "Ann"}, {"role": "developer", "content": "dev"}],
    [],
]

REQUESTS = [{"messages": m, "add_generation_prompt": True} for m in CONVERSATIONS]
REQUESTS += [{"messages": m, "add_generation_prompt": False} for m in CONVERSATIONS[:8]]
REQUESTS += [{"messages": m} for m in CONVERSATIONS[:3]]
REQUESTS += [{"messages": m, "tools": [WEATHER, CLOCK], "add_generation_prompt": True} for m in CONVERSATIONS[:9]]
REQUESTS += [
    {"messages": m, "add_generation_prompt": True, "chat_template_kwargs": {"enable_thinking": flag, "thinking": flag}}
    for m in CONVERSATIONS[:2] + CONVERSATIONS[3:6]
    for flag in (True, False)
]
REQUESTS += [{"messages": CONVERSATIONS[1], "enable_thinking": False, "add_generation_prompt": True, "tools": []}]
REQUESTS += [{"messages": m, "add_generation_prompt": True, "tools": [WEATHER], "chat_template_kwargs": {"reasoning_effort": effort, "clear_thinking": clear}}
             for m, effort, clear in ((CONVERSATIONS[1], "low", True), (CONVERSATIONS[4], "high", False), (CONVERSATIONS[5], "medium", True))]

# Templates in the manner of published families, each with constructs of its own.
STYLES = [
    # Llama 3.1: date, tools in the user's turn, strings joined by filters
    """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
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
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    # Mistral: alternation check with namespaces and selectattr, ids of nine characters
    """{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if tool_call.id is not defined or tool_call.id|length != 9 %}{{- ', "id": "' + ("000000000" ~ tool_call.id)[-9:] + '"}' }}{%- endif %}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    # Gemma: content as a string or as parts, roles renamed
    """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    # GLM: macros over content, unless and arguments as key and value pairs
    """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}
    {%- set reasoning_content = m.reasoning_content %}
{%- else %}
    {%- if '</think>' in content %}
        {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\\n<think>' + reasoning_content.strip() +  '</think>'}}
{%- else -%}
{{ '\\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\\n' + content.strip() }}
{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}
    {%- set tc = tc.function %}
{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% if _args is mapping %}{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}{% endif %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if m.content is string -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
    {{- '<|observation|>' }}
{%- endif %}
{{- '\\n<tool_response>\\n' }}{{- m.content }}{{- '\\n</tool_response>' }}
{%- endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
""",
    # GLM-5.3: an effort of three words and no switch for the reasoning, which the prompt always opens; no line breaks between turns
    """[gMASK]<sop>
{%- set effort = reasoning_effort if reasoning_effort is defined and reasoning_effort in ['low', 'high'] else 'max' -%}
<|system|>Reasoning Effort: {{ effort | capitalize }}
{%- set clears = clear_thinking if clear_thinking is defined else false -%}
{%- macro plain(object) -%}
    {%- set at = namespace(first=true) -%}
    {{ '{' -}}
    {%- for key, value in object.items() if key not in ['strict', 'defer_loading'] -%}
        {{- '' if at.first else ', ' }}"{{ key }}": {{ value | tojson(ensure_ascii=False) }}{% set at.first = false -%}
    {%- endfor -%}
    {{- '}' -}}
{%- endmacro -%}
{%- if tools -%}
<|system|>
# Tools
<tools>
{% for tool in tools -%}
    {%- set tool = tool.function if 'function' in tool else tool -%}
    {{ plain(tool) }}
{% endfor -%}
</tools>
A call: <tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value></tool_call>
{%- endif -%}
{%- set last = namespace(user=-1) -%}
{%- for m in messages if m.role == 'user' -%}{%- set last.user = messages.index(m) -%}{%- endfor -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}<|user|>{{ m.content if m.content is string else (m.content | map(attribute='text') | join) }}
    {%- elif m.role == 'assistant' -%}
        {%- set thought = m.reasoning_content if m.reasoning_content is string else '' -%}
        <|assistant|><think>{{ thought if loop.index0 > last.user or not clears }}</think>{{ m.content if m.content is string }}
        {%- for call in m.tool_calls or [] -%}
            {%- set call = call.function if call.function else call -%}
            <tool_call>{{ call.name }}
            {%- if call.arguments is mapping -%}{%- for key, value in call.arguments.items() -%}
                <arg_key>{{ key }}</arg_key><arg_value>{{ value if value is string else value | tojson(ensure_ascii=False) }}</arg_value>
            {%- endfor -%}{%- endif -%}
            </tool_call>
        {%- endfor -%}
    {%- elif m.role == 'tool' -%}
        {{ '<|observation|>' if loop.first or loop.previtem.role != 'tool' }}<tool_response>{{ m.content }}</tool_response>
    {%- elif m.role == 'system' -%}<|system|>{{ m.content }}
    {%- endif -%}
{%- endfor -%}
{{ '<|assistant|><think>' if add_generation_prompt }}""",
    # Qwen3.5: arguments in tags of their own, results in one user turn by the items before and behind, thought since the last real query
    """{%- macro text_of(content, is_system=false) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if 'image_url' in item or item.type == 'image' -%}
                {%- if is_system -%}
                    {{- raise_exception('System message cannot contain images.') }}
                {%- endif -%}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in item -%}
                {{- item.text }}
            {%- endif -%}
        {%- endfor -%}
    {%- elif content is none or content is undefined -%}
        {{- '' }}
    {%- endif -%}
{%- endmacro -%}
{%- if not messages -%}
    {{- raise_exception('No messages provided.') }}
{%- endif -%}
{%- set first_system = text_of(messages[0].content, true)|trim if messages[0].role == 'system' else '' -%}
{%- if tools and tools is iterable and tools is not mapping -%}
    {{- '<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>' }}
    {%- for tool in tools -%}
        {{- '\n' }}{{- tool | tojson }}
    {%- endfor -%}
    {{- '\n</tools>\n\nCall one as <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>' }}
    {{- '\n\n' + first_system if first_system else '' }}
    {{- '<|im_end|>\n' }}
{%- elif first_system -%}
    {{- '<|im_start|>system\n' + first_system + '<|im_end|>\n' }}
{%- endif -%}
{%- set ns = namespace(in_turn=true, last_query=messages|length - 1) -%}
{%- for message in messages[::-1] -%}
    {%- set index = (messages|length - 1) - loop.index0 -%}
    {%- if ns.in_turn and message.role == 'user' -%}
        {%- set text = text_of(message.content)|trim -%}
        {%- if not (text.startswith('<tool_response>') and text.endswith('</tool_response>')) -%}
            {%- set ns.in_turn = false -%}
            {%- set ns.last_query = index -%}
        {%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if ns.in_turn -%}
    {{- raise_exception('No user query found in messages.') }}
{%- endif -%}
{%- for message in messages -%}
    {%- set text = text_of(message.content)|trim -%}
    {%- if message.role == 'system' -%}
        {%- if not loop.first -%}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif -%}
    {%- elif message.role == 'user' -%}
        {{- '<|im_start|>user\n' + text + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' -%}
        {%- set thought = '' -%}
        {%- if message.reasoning_content is string -%}
            {%- set thought = message.reasoning_content -%}
        {%- elif '</think>' in text -%}
            {%- set thought = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
            {%- set text = text.split('</think>')[-1].lstrip('\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\n' }}
        {{- '<think>\n' + thought|trim + '\n</think>\n\n' if loop.index0 > ns.last_query else '' }}{{- text }}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping -%}
            {%- for tool_call in message.tool_calls -%}
                {%- if tool_call.function is defined -%}
                    {%- set tool_call = tool_call.function -%}
                {%- endif -%}
                {{- ('\n\n' if loop.first and text|trim else '' if loop.first else '\n') + '<tool_call>\n<function=' + tool_call.name + '>\n' }}
                {%- if tool_call.arguments is mapping -%}
                    {%- for key, value in tool_call.arguments|items -%}
                        {{- '<parameter=' + key + '>\n' }}
                        {{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
                        {{- '\n</parameter>\n' }}
                    {%- endfor -%}
                {%- endif -%}
                {{- '</function>\n</tool_call>' }}
            {%- endfor -%}
        {%- endif -%}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' -%}
        {%- if loop.previtem and loop.previtem.role != 'tool' -%}
            {{- '<|im_start|>user' }}
        {%- endif -%}
        {{- '\n<tool_response>\n' }}{{- text }}{{- '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}
            {{- '<|im_end|>\n' }}
        {%- endif -%}
    {%- else -%}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '<think>\n') }}
{%- endif -%}
""",
    # gpt-oss: types of JSON schemas as TypeScript, macros that call each other, defaults, loops with previous items
    """{%- macro render_type(param_spec, is_nullable=false) -%}
    {%- if param_spec.type == "array" -%}
        {%- if param_spec['items'] -%}
            {%- if param_spec['items']['type'] == "string" -%}
                {{- "string[]" }}
            {%- elif param_spec['items']['type'] in ["number", "integer"] -%}
                {{- "number[]" }}
            {%- else -%}
                {%- set inner_type = render_type(param_spec['items']) -%}
                {{- inner_type + "[]" if inner_type|length <= 50 else "any[]" }}
            {%- endif -%}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
    {%- elif param_spec.type is defined and param_spec.type is iterable and param_spec.type is not string and param_spec.type is not mapping -%}
        {{- param_spec.type | join(" | ") }}
    {%- elif param_spec.type == "string" -%}
        {%- if param_spec.enum -%}
            {{- '"' + param_spec.enum|join('" | "') + '"' -}}
        {%- else -%}
            {{- "string" }}{%- if param_spec.nullable or is_nullable %} | null{% endif -%}
        {%- endif -%}
    {%- elif param_spec.type in ("number", "integer") -%}
        {{- "number" }}
    {%- elif param_spec.type == "object" and param_spec.properties -%}
        {{- "{\\n" }}
        {%- for prop_name, prop_spec in param_spec.properties.items() -%}
            {{- prop_name -}}{%- if prop_name not in (param_spec.required or []) -%}{{- "?" }}{%- endif -%}
            {{- ": " }}{{ render_type(prop_spec, is_nullable=true) }}
            {%- if not loop.last -%}{{-", " }}{%- endif -%}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}
        {{- "any" }}
    {%- endif -%}
{%- endmacro -%}
{%- macro render_tools(tools) -%}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\n" }}
        {{- "type "+ tool.name + " = (" }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "_: {\\n" }}
            {%- for name, spec in tool.parameters.properties|dictsort %}
                {%- if spec.description %}{{- "// " ~ spec.description ~ "\\n" }}{%- endif %}
                {{- name }}: {{ render_type(spec) }}
                {%- if spec.default is defined %}
                    {%- if spec.enum %}{{- ", // default: " + (spec.default or "none")|upper }}{%- else %}{{- ", // default: " ~ spec.default|tojson }}{%- endif %}
                {%- endif %}
                {{- ",\\n" }}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- else %}
            {{- ") => any;\\n\\n" }}
        {%- endif %}
    {%- endfor %}
{%- endmacro -%}
{%- if tools %}{{ render_tools(tools) }}{% endif -%}
{%- set ns = namespace(last_tool_call=none, any=false) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- if message.content and '<|channel|>' in message.content %}{{ raise_exception("channel tags in content") }}{% endif %}
        {%- if message.tool_calls %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- "<|start|>assistant to=functions." ~ tool_call.name ~ "<|channel|>commentary json<|message|>" }}
            {{- tool_call.arguments|tojson }}{{- "<|call|>" }}
            {%- set ns.last_tool_call = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + (message.content or '') + "<|end|>" }}
            {%- set ns.last_tool_call = none %}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- if ns.last_tool_call is none %}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}{%- endif %}
        {{- "<|start|>functions." + ns.last_tool_call }} to=assistant<|message|>{{ message.content|tojson }}<|end|>
    {%- else -%}
        <|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
        {%- if loop.previtem is defined and loop.previtem.role == message.role %}(again){% endif %}
        {%- if loop.nextitem is not defined %}(end){% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
""",
    # generation marks, break and continue, block set, a filter block, with
    """{% for m in messages %}
{% if m.role == 'tool' %}{% continue %}{% endif %}
{% if loop.index > 3 %}{% break %}{% endif %}
{% set body %}
  {{ m.content }}
{% endset %}
{% with r = m.role | capitalize, n = body | length %}
{% if m.role == 'assistant' %}{% generation %}{{ r }}({{ n }}): {{ body | trim }}{% endgeneration %}
{% else %}
{% filter upper %}{{ r }}({{ n }}): {{ body | indent(2) }}{% endfilter %}
{% endif %}
{% endwith %}
{% else %}
nobody
{% endfor %}
""",
]

CONSTRUCT_REQUEST = {
    "messages": [user("Hé\tllo"), assistant(None), tool("r")],
    "s": "Hello, Wörld — 你好",
    "e": "",
    "n": 7,
    "f": 2.5,
    "neg": -3,
    "t": True,
    "no": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a"],
    "d": {"z": 1, "a": [1, {"k": "v"}], "items": "own", "Ä": None},
    "people": [{"name": "Bo", "age": 5, "tags": ["x"]}, {"name": "al", "age": 3}, {"name": "Cy", "age": 5, "tags": []}],
}

CONSTRUCTS = (
    # whitespace control
    ["a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a  {%- if t -%}  b  {%- endif -%}  c", "x {#- c -#} y", "x\n  {# c #}\n y",
     "  {%+ if t %}x{% endif +%}\ny", "{{ 1 -}}\n\n 2", "1 {{- 2 }}", "{% raw %}{{ x }}{% if %}{% endraw %}", " {%- raw -%}  {{ a }} {%- endraw -%} z",
     "{% raw %}\n a\n  {% endraw %}\nb", "a\r\nb\rc\n", "a\n\n", "\n", "", "{% if t %}\n\n\na{% endif %}\n\nb", "{#+ keep #} x", "{{ '{%' }} {{ \"}}\" }}",
     "  {{ 'kept' }}", "\t{% set x = 1 %}\n{{ x }}", "a{% set x = 1 %}  {% set y = 2 %}\nb", "{%- if t -%}{{ '' }}{%- endif %}\n!"]
    # literals and printing
    + ["{{ %s }}" % x for x in [
        "1", "-1", "1_000", "0x1F", "0b101", "0o17", "1.5", "1e3", "1.5e-7", "1e16", "1e22", "123456789012345.6", "0.1 + 0.2", "1e-5", "100.0", "1/3", "2.0**70",
        "true", "True", "none", "None", "'a' 'b' \"c\"", r"'\n\t\\\'\"\x41\u00e9\U0001F600\101\q'", "[1, 'a', 2.0, none, true]", "(1,)", "()", "(1, 2)", "1, 2",
        "{'a': 1, 'b': [2]}", "{}", "[]", "{1: 2, 1.0: 3, true: 4}", "['it\\'s', 'q\"', 'b\\'\\\"', 'n\\n\\x00\\x7f\\u200b\\xa0é']", "d", "people", "undefined_name",
        "[undefined_name]", "l", "'%'", "9223372036854775807", "-0.0", "1e300*1e10", "f", "n / 2", "n // 2", "-7 // 2", "-7 % 3", "7 % -3", "7.5 // 2", "-7.5 % 2",
        "2 ** 10", "2 ** -1", "2 ** 3 ** 2", "-2 ** 2", "10 - 2 - 3", "2 + 3 * 4", "(2 + 3) * 4", "+n", "-neg", "'ab' * 3", "3 * [1]", "[1] + [2]", "(1,) + (2,)",
        "'a' ~ 1 ~ none ~ 2.0 ~ [1]", "1 ~ 2 + 3", "t + t", "'a' + 'b'"]]
    # comparisons and logic
    + ["{{ %s }}" % x for x in [
        "1 < 2", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 >= 2", "1 == 1.0", "true == 1", "'a' < 'b'", "'B' < 'a'", "[1, 2] < [1, 3]", "'a' in 'abc'", "'x' not in 'abc'",
        "1 in l", "9 in l", "'z' in d", "'q' in d", "1 in (1, 2)", "not t", "not not t", "t and 'x'", "e and 'x'", "e or 'y'", "no or e or 0", "n and l", "not e and t or no",
        "1 if t else 2", "1 if e", "1 if e else 2 if e else 3", "(1 if t) == 1", "d == {'z': 1}", "l == [3, 1, 2]", "(1, 2) == [1, 2]", "none == undefined_name",
        "undefined_name == other_undefined", "'' in e", "not 1 == 2", "1 is number and 2 is number", "2 in [1, 2] == true", "'é' > 'z'", "1 != 2 != 1", "[] or {} or ()"]]
    # access
    + ["{{ %s }}" % x for x in [
        "d.z", "d['z']", "d.a[1].k", "d['items']", "d.missing", "d['missing']", "d.get('z')", "d.get('q')", "d.get('q', 5)", "l[0]", "l[-1]", "l[9]", "l.0", "s[0]",
        "s[-1]", "s[7:12]", "s[::-1]", "s[::2]", "s[:-3]", "l[1:]", "l[::-1]", "l[:1] + l[1:]", "l[-2:]", "l[5:]", "l[2:0:-1]", "(1,2,3)[1:]", "s[15:99]", "d.missing.deeper",
        "missing.x", "missing['x']", "no.x", "no['x']", "messages[0].content", "messages[0]['role']", "messages[1].content", "messages[-1].role", "l['x']", "n.x", "l[1.0]", "d[l]",
        "people[0].tags[0]", "people[1].tags is defined", "range(10)[2:8:2]", "range(3)[-1]", "s.__class__", "d.update", "d.update({})", "d.clear is defined", "l.sort()", "l[t]",
        "l[:n]", "l['a':]", "no[1:]", "s[1:3:0]", "n[1:]", "missing[1:]", "d[1:]", "'abc'.0", "d.keys is callable"]]
    # loops
    + ["{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
       "{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ loop.cycle('a', 'b') }} {% endfor %}",
       "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{{ loop.length }} {% endfor %}",
       "{% for x in [] %}x{% else %}none{% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
       "{% for k in d %}{{ k }};{% endfor %}", "{% for c in 'aé你' %}[{{ c }}]{% endfor %}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}",
       "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
       "{% for x in range(3) %}{% for y in range(x) %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}|{% endfor %}", "{% for x in missing %}x{% else %}empty{% endfor %}",
       "{% for x in 5 %}{% endfor %}", "{% for x in no %}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
       "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}e{% endfor %}", "{% for x in l %}{% continue %}{% else %}e{% endfor %}",
       "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
       "{% for x in l %}{% set loop_x = loop %}{{ loop_x.index }}{% endfor %}", "{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
       "{% for x in l|sort %}{{ x }}{% endfor %}", "{% for x in ls|map('upper') %}{{ loop.last }}{{ x }}{% endfor %}",
       "{% for x in ls|map('upper') %}{{ loop.length }}{{ x }}{% endfor %}", "{% for x in l %}{{ loop.changed(x > 1) }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}",
       "{% for x in l %}{{ loop.nope is defined }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}", "{% for x in l: %}{{ x }}{% endfor %}", "{{ loop is defined }}",
       "{% for x in (l if t else ls) %}{{ x }}{% endfor %}", "{% set ns = namespace(n=0) %}{% for x in range(6) if ns.n < 3 %}{% set ns.n = ns.n + 1 %}{{ x }}{% endfor %}",
       "{% for x in l %}{{ x }}{% if loop.last %}{% for y in l %}{{ y }}{% endfor %}{% endif %}{% endfor %}"]
    # set, with, if, macros
    + ["{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a = 1, 2 %}{{ a }}", "{% set x %}a{{ n }}b{% endset %}[{{ x }}]", "{% set x | upper | trim %} a {% endset %}[{{ x }}]",
       "{% if e %}1{% elif n == 7 %}2{% else %}3{% endif %}", "{% if e %}1{% elif no %}2{% elif t %}{% if n %}x{% endif %}{% else %}3{% endif %}", "{% if t %}{% set q = 5 %}{% endif %}{{ q }}",
       "{% if e %}{% set n = 5 %}{% endif %}{{ n }}", "{% if missing %}a{% else %}b{% endif %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% with %}{% set zz = 1 %}{% endwith %}{{ zz }}",
       "{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{% endwith %}",
       "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(1, c=4) }}|{{ m(b=1, a=2) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
       "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}",
       "{% macro f(x) %}{{ x }}{% if x > 0 %}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m() %}{{ n }}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}",
       "{% set g = 1 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 2 %}{{ m() }}", "{% macro m(x) %}{{ x is defined }}{% endmacro %}{{ m() }}", "{% macro m(x) %}{{ x.y }}{% endmacro %}{{ m() }}",
       "{% macro m(a) %} {{ a }} {% endmacro %}{{ m('x') | trim }}{{ m('y') is string }}", "{{ m }}{% macro m() %}{% endmacro %}{{ m }}{{ m.name }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
       "{% set ns = namespace({'a': 1}, b=2) %}{{ ns }}{{ ns.a }}{{ ns['b'] }}{{ ns.c }}", "{% set d.z = 1 %}", "{% set ns = namespace() %}{% set ns.q = [] %}{% set _ = ns.q.append(1) %}{{ ns.q }}",
       "{% set q = [1, 2, 3] %}{{ q.pop() }}{{ q.pop(0) }}{{ q }}", "{{ [].pop() }}", "{{ dict(a=1, b=2) }}{{ dict([(1, 2)], c=3) }}", "{{ range(5)|list }}{{ range(2, 8, 3)|list }}{{ range(3, 0, -1)|list }}{{ range(3) }}",
       "{{ range(0) }}{{ range(1, 10, 2) }}", "{{ range(1, 2, 0) }}", "{{ range(200000) }}", "{{ raise_exception('no ' ~ n) }}", "{% if e %}{{ raise_exception('x') }}{% endif %}ok", "{% print n, s %}", "{{ strftime_now('%%') }}",
       "{% filter upper %}a{{ n }}b{% endfilter %}", "{% filter replace('a', 'b') | upper %}banana{% endfilter %}", "{% generation %}{% set y = 1 %}a{{ n }}{% endgeneration %}{{ y is defined }}",
       "{% macro m(l) %}{{ l(1) }}{% endmacro %}{{ m(range) }}", "{{ namespace(a=1).a }}", "{{ (l | first)(1) }}", "{{ dict(**{'a': 1}) }}{{ range(*[1, 3]) }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1], **{'b': 2}) }}",
       "{% set x = namespace(v=none) %}{% if x.v is none %}N{% endif %}", "{%set x=1%}{{x}}", "{% set messages = messages[1:] %}{{ messages | length }}", "{% for n in l %}{% endfor %}{{ n }}"]
    # tests
    + ["{{ %s is %s }}" % (x, y) for x in ["n", "f", "t", "no", "s", "e", "l", "d", "missing", "(1,)", "range(2)", "d.items()", "'ABC'"]
       for y in ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable", "sequence", "callable", "lower", "upper"]]
    + ["{{ %s }}" % x for x in ["n is odd", "n is even", "n is divisibleby 7", "n is divisibleby(2)", "n is eq 7", "n is equalto(8)", "n is ne 8", "n is gt 3", "n is lt 3", "n is ge 7", "n is le 6", "1 is in l",
                                "n is not none", "n is not divisibleby 2", "n is sameas 7", "t is sameas true", "'x' is in 'xyz'", "s is odd", "'upper' is filter", "'nope' is filter", "'odd' is test", "missing is odd",
                                "n is greaterthan 5 and n is lessthan 9", "1 is in l or e", "d is not mapping"]]
    # filters
    + ["{{ %s }}" % x for x in [
        "d|tojson", "d|tojson(indent=2)", "d|tojson(indent=None)", "d|tojson(ensure_ascii=true)", "d|tojson(sort_keys=true)", "d|tojson(separators=(',', ':'))", "s|tojson", "'\"\\\\/<>&\\n\\u2028\\x7f\\x1f'|tojson", "1.0|tojson",
        "1e100|tojson", "none|tojson", "t|tojson", "(1, 2)|tojson", "[]|tojson(indent=2)", "{}|tojson(indent=2)", "[[], {}]|tojson(indent=1)", "missing|tojson", "namespace()|tojson", "{1: 2, none: 3, true: 4, 1.5: 6}|tojson",
        "{(1,): 2}|tojson", "l|tojson(indent='--')", "'😀'|tojson(true)", "d|tojson(indent=0)", "range(3)|tojson", "s|upper", "s|lower", "s|title", "s|capitalize", "'hELLO wORLD-foo (bar'|title", "'  x '|trim", "'xxaxx'|trim('x')", "n|trim",
        "' a '|trim ~ '|'", "l|join", "l|join(', ')", "people|join(', ', attribute='name')", "s|length", "l|count", "d|length", "n|length", "missing|length", "no|length", "l|first", "l|last", "s|first", "s|last", "[]|first", "[]|last", "d|first",
        "missing|first", "missing|last", "s|list", "d|list", "l|map('string')|list", "people|map(attribute='name')|list", "people|map(attribute='tags', default=[])|list", "people|map(attribute='tags.0')|list", "ls|map('upper')|join", "no|map('upper')|list", "l|map('float')|list",
        "l|select('odd')|list", "l|select('gt', 1)|list", "l|reject('odd')|list", "[0, 1, '', 'a', none]|select|list", "[0, 1, '', 'a', none]|reject|list", "people|selectattr('age', 'eq', 5)|map(attribute='name')|list", "people|selectattr('tags')|list|length",
        "people|selectattr('tags', 'defined')|list|length", "people|rejectattr('age', 'gt', 4)|list|length", "missing|default('x')", "e|default('x')", "e|default('x', true)", "no|d('x')", "missing|d", "s|replace('l', 'L')", "s|replace('l', 'L', 1)", "'aaa'|replace('', '-')",
        "n|replace(7, 8)", "d|items|list", "missing|items|list", "l|items|list", "d|dictsort", "{'b': 1, 'A': 2, 'c': 0}|dictsort", "{'b': 1, 'A': 2}|dictsort(true)", "{'b': 1, 'A': 2, 'c': 0}|dictsort(by='value')", "{'b': 1, 'A': 2}|dictsort(reverse=true)",
        "n|string", "d|string", "'3'|int", "'3.7'|int", "'x'|int", "'x'|int(5)", "'ff'|int(base=16)", "'0x1F'|int(0, 16)", "2.9|int", "-2.9|int", "t|int", "no|int", "'  12_3 '|int", "'3.5'|float", "'x'|float", "n|float", "'1e3'|float", "'inf'|float", "'nan'|float", "missing|int",
        "-3|abs", "neg|abs", "-2.5|abs", "'x'|abs", "2.5|round", "3.5|round", "2.567|round(2)", "2.5|round(0, 'ceil')", "2.5|round(method='floor')", "7|round", "1234.5|round(-2)", "1250|round(-2)", "-2.5|round", "2.675|round(2)", "l|sum", "people|sum(attribute='age')", "l|sum(start=10)",
        "[0.1, 0.2]|sum", "ls|sum", "['a', 'A', 'b', 'a']|unique|list", "['a', 'A']|unique(true)|list", "people|unique(attribute='age')|map(attribute='name')|list", "l|sort", "ls|sort", "ls|sort(case_sensitive=true)", "l|sort(reverse=true)", "people|sort(attribute='age,name')|map(attribute='name')|list",
        "people|sort(attribute='age', reverse=true)|map(attribute='name')|list", "[1, 'a']|sort", "l|reverse|list", "s|reverse", "l|min", "l|max", "ls|min", "[]|max", "people|max(attribute='age')", "'a\\nb\\n\\nc'|indent", "'a\\nb'|indent(2, true)", "'a\\n\\nb'|indent(2, blank=true)", "'a\\nb'|indent('> ')",
        "'<a href=\"x\">\\'&'|escape", "s|safe", "n|safe", "[1, 2, 3, 4, 5]|batch(2)|list", "[1, 2, 3]|batch(2, 'x')|list", "'ab'|center(6)", "'abc'|center(6)", "d|attr('items') is callable", "d|attr('z')", "1|default(2) + 3", "-1|abs", "'a'|upper + 'b'|upper", "('a' ~ 'b')|upper", "l|join('-')|upper|lower|length",
        "'a,b'.split(',')|map('trim')|list", "l|map('string')|first", "l|map('string')|length", "(l|map('string'))[0]", "l|reverse|first", "l|list|reverse|list", "5|join", "none|join", "s|join('.')", "'ß'|upper", "'ß'|capitalize", "'ÄÖÜ ÉÀ ŁΩЖ'|lower", "'äöü éà łωж'|upper", "l|first|string + 'x'", "l|tojson|length",
        "[[3, 1], [2]]|map('sort')|list", "[[3, 1], [2]]|map('join', '-')|list", "['a', 'b']|map('replace', 'a', 'x')|list", "ls|map('default', 'x')|list", "[1, 2]|select('in', [2])|list", "people|map(attribute='age')|sum", "[missing]|map('default', 'q')|list", "l|select('divisibleby', 3)|list"]]
    # methods
    + ["{{ %s }}" % x for x in [
        "'  a '.strip() ~ '|'", "'xaxbx'.strip('x')", "'xyax'.lstrip('xy')", "'axyx'.rstrip('yx')", "' a '.lstrip() ~ '|'", "' a '.rstrip() ~ '|'", "'a,b,c'.split(',')", "'a,b,c'.split(',', 1)", "'a,b,c'.rsplit(',', 1)", "' a  b '.split()", "' a  b c '.split(none, 1)", "' a  b c '.rsplit(none, 1)",
        "'a,b'.split(sep=',')", "'a,b,c'.split(',', maxsplit=1)", "''.split(',')", "''.split()", "'a'.split('')", "'<think>x</think>y'.split('</think>')[-1]", "'abc'.startswith('ab')", "'abc'.startswith(('x', 'a'))", "'abc'.startswith('b', 1)", "'abc'.endswith('bc')", "'abc'.endswith(('x', 'c'))",
        "'abc'.endswith('b', 0, 2)", "'aXbX'.replace('X', '-')", "'aXbX'.replace('X', '-', 1)", "s.upper()", "s.lower()", "'hello world'.title()", "'hELLO'.capitalize()", "'it\\'s a b2c'.title()", "s.find('ö')", "s.find('q')", "s.rfind('l')", "s.index('W')", "s.index('q')", "'aXbX'.count('X')", "'aaa'.count('')",
        "'aaaa'.count('aa')", "'-'.join(['a', 'b'])", "'-'.join([1])", "'-'.join('abc')", "'12'.isdigit()", "'1a'.isdigit()", "''.isdigit()", "'ab'.isalpha()", "'a1'.isalnum()", "' \\t'.isspace()", "'ab'.islower()", "'AB1'.isupper()", "'aB'.islower()", "'abc'.removeprefix('a')", "'abc'.removesuffix('c')", "'a=b=c'.partition('=')",
        "'a=b=c'.rpartition('=')", "'abc'.partition('-')", "'abc'.rpartition('-')", "'a\\nb\\r\\nc'.splitlines()", "'a\\nb'.splitlines(true)", "d.items()", "d.keys()", "d.values()", "d.items()|list", "d.keys()|list", "d.values()|length", "d.copy() == d", "l.index(1)", "l.index(9)", "l.count(1)", "(1, 2).index(2)", "l.copy()",
        "d.items()|first", "d.keys()|join(',')", "('z', 1) in d.items()", "d.get()", "d.get('a', 1, 2)", "s.nope()", "n.upper()", "missing.strip()", "no.strip()", "s.strip(1)", "l.append(4) ~ l", "d['items'].upper()", "'x'.center(5) ~ '|'", "s.startswith(1)", "'a'.upper().lower()", "(s.split(',')[0])[::-1].upper()"]]
    # errors
    + ["{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 1 // 0 }}", "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ none + 1 }}", "{{ missing + 1 }}", "{{ 1 + missing }}", "{{ 1 < 'a' }}", "{{ missing < 1 }}", "{{ -missing }}", "{{ -'a' }}", "{{ 1 in 5 }}", "{{ 1 in 'a' }}", "{{ missing() }}", "{{ n() }}", "{{ 'a' * 'b' }}", "{{ {[]: 1} }}",
       "{{ 1 in missing }}", "{{ 1 in no }}", "{% if x %}", "{% endif %}", "{{ x", "{{ (1 }}", "{{ 1 2 }}", "{{ }}", "{% for %}{% endfor %}", "{% set %}", "{% set 1 = 2 %}", "{{ 'a }}", "{{ a b }}", "{# x", "{% raw %}x", "{{ ! }}", "{{ 1] }}", "{% if t %}{% endfor %}", "{% break %}", "{% macro %}{% endmacro %}",
       "{{ x is }}", "{{ x | }}", "{{ x. }}", "{{ [1, }}", "{% for x in l %}", "{{ f(a=1, 2) }}", "{% set x = %}", "{{ {1} }}", "{{ a[ }}", "{% else %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ 'a' if }}", "{% if %}{% endif %}", "{{ not }}", "{{ 2 ** }}", "{{ d.z. }}", "{% with a %}{% endwith %}"]
)
