"""The work behind tokenizers.sh: trains tokenizers, makes strings, compares."""
import argparse, glob, json, os, random, subprocess, sys, tempfile, time, unicodedata

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def split(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior='isolated', invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(pre, norm=None):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    if norm:
        t.normalizer = norm
    return t


def llama2(pre=None):
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token='<unk>'))
    if pre:
        t.pre_tokenizer = pre
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    t.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(' ', 1, 0)])
    return t


def families():
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return {
        'gpt2': byte_level(plain),
        'gpt2_prefix_space': byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        'llama3': byte_level(split(LLAMA3)),
        'qwen2': byte_level(split(QWEN), normalizers.NFC()),
        'smollm': byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), plain])),
        'gpt4o': byte_level(split(GPT4O), normalizers.NFKC()),
        'starcoder': byte_level(pre_tokenizers.Sequence([
            pre_tokenizers.Punctuation('contiguous'), pre_tokenizers.Digits(False),
            pre_tokenizers.Split(Regex(r'\s*[\r\n]'), 'merged_with_next', False),
            pre_tokenizers.Split('=', 'merged_with_previous', False), plain])),
        'llama2': llama2(),
        'metaspace': llama2(pre_tokenizers.Metaspace('▁', 'first', False)),
    }


def trained(name, tokenizer, corpus, size):
    specials = ['<unk>'] if tokenizer.model.byte_fallback else []
    bytes_too = [f'<0x{b:02X}>' for b in range(256)] if tokenizer.model.byte_fallback else []
    alphabet = [] if tokenizer.model.byte_fallback else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials + bytes_too,
                                  initial_alphabet=alphabet, show_progress=False,
                                  max_token_length=24, limit_alphabet=min(400, size))
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(['<|endoftext|>', '<|im_start|>', '<|im_end|>'])
    tokenizer.add_tokens([
        AddedToken('<tool>', normalized=False), AddedToken('ångström', normalized=True),
        AddedToken('[LEFT]', lstrip=True, normalized=False),
        AddedToken('[RIGHT]', rstrip=True, normalized=False),
        AddedToken('lone', single_word=True, normalized=False),
        AddedToken('<|im', normalized=False), AddedToken('  \n', normalized=False)])
    if name in ('llama3', 'llama2'):
        first = '<|im_start|>'
        template = processors.TemplateProcessing(
            single=f'{first} $A', special_tokens=[(first, tokenizer.token_to_id(first))])
        tokenizer.post_processor = processors.Sequence(
            [processors.ByteLevel(trim_offsets=False), template])
    document = json.loads(tokenizer.to_str())
    for entry in document['added_tokens']:  # bytes aren't special, however they came in
        if entry['content'].startswith('<0x'):
            entry['special'] = False
    document['added_tokens'] = [e for e in document['added_tokens']
                                if not e['content'].startswith('<0x')]
    if name == 'llama3':
        # Words that no merges lead to: ignore_merges finds them whole.
        document['model']['ignore_merges'] = True
        document['model']['merges'] = document['model']['merges'][:size // 3]
    if name == 'gpt2':
        document['model']['merges'] = [' '.join(m) for m in document['model']['merges']]
    return document


class strings:
    """Texts that are likely to differ. One seed gives one list."""

    SAMPLES = [
        'The quick brown fox jumps over the lazy dog.', "It's what we'd've said; they'LL see, I'M "
        'sure.', 'Größe, Übermaß, Straße', 'Être où ça, l’été, œuvre', 'Привет, как дела? Ёжик',
        'Καλημέρα κόσμε ἀρχή', 'שלום עולם בְּרֵאשִׁית', 'مرحبا بالعالم ١٢٣', 'नमस्ते दुनिया १२३', 'สวัสดีชาวโลก ๑๒๓',
        '你好，世界！今天天气不错。', 'こんにちは世界。カタカナ ﾊﾝｶｸ', '안녕하세요 세계 한글', 'Xin chào thế giới, tiếng Việt',
        'Cześć świecie, zażółć gęślą jaźń', 'İstanbul ıIiİ ǅ ŉ ﬁ ﬀ Å Ω K ſ', 'বাংলা ভাষা', 'தமிழ் மொழி',
        'ქართული ენა', 'Հայերեն լեզու', 'አማርኛ', 'ភាសាខ្មែរ', 'монгол ᠮᠣᠩᠭᠣᠯ ᠊᠎ᠠ', 'cafe\u0301 n\u0303 a\u030a o\u0308\u0323',
        'ｆｕｌｌｗｉｄｔｈ １２３', '①②③ Ⅷ ½ ¾ ² ³ ₂ ㊿', '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚', '∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β)',
        '👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ❤️ 🫠', 'a\u200bb\u200cc\u200dd\ufeffe', 'https://example.org/a/b?c=d&e=f%20g#h',
        'user@example.com', '3.14159e-10 0xDEADBEEF 1,234,567.89 12:34:56 2024-01-01', '$12 + 30 = €42 #### 42',
        'if (x != 0) { return y->z[i++] / 2; } // ok', 'def f(a, *b, **c):\n\treturn {k: v for k, v in c.items()}',
        '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n', 'x [LEFT] y  [LEFT][RIGHT]  z[RIGHT]\n\nq',
        'lone alone lone, lonely (lone) élone', '<tool>a</tool><tool', 'a\u030angstro\u0308m ångström Ångström',
        '<|im <|im_ <|im_start', '▁under▁score ▁ _', '<0x41><0xE4>', 'ĠHello Ċ Ā',
        '\x00\x01\x1c\x1d\x1e\x1f\x7f\x80\x9f', "''s ''t 's't'S'T'ſ 'ſt", '  \n  \n\n \t\n x  \n',
    ]
    SPACES = [' ', '  ', '   ', '\n', '\n\n', '\r\n', '\r', '\t', '\t\t', '\u00a0', '\u3000', '\u2028',
              '\u2029', '\x85', '\x0b', '\x0c', '\u1680', '\u180e', '\u200b', '\u2003', '\u202f', '\x1c']

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.letters = [c for c in map(chr, range(0x20, 0x1FBFF))
                        if unicodedata.category(c) not in ('Cn', 'Cs', 'Co')]
        self.code = []
        for path in sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), '*.py')))[:80]:
            with open(path, encoding='utf-8', errors='ignore') as file:
                self.code.append(file.read())

    def block(self):
        d = self.draw
        begin = d.randrange(len(self.letters))
        near = self.letters[begin:begin + d.choice((20, 80, 300))]
        return ''.join(d.choice(near) for _ in range(d.randint(1, 20)))

    def code_piece(self):
        d = self.draw
        source = d.choice(self.code)
        begin = d.randrange(len(source))
        return source[begin:begin + d.choice((10, 60, 400))]

    def spaces(self):
        return ''.join(self.draw.choice(self.SPACES) for _ in range(self.draw.randint(1, 5)))

    def sample_piece(self):
        d = self.draw
        s = d.choice(self.SAMPLES)
        begin = d.randrange(len(s))
        return s[begin:begin + d.choice((3, 10, 100))]

    def anything(self):
        d = self.draw
        return ''.join(d.choice(self.letters) for _ in range(d.randint(1, 12)))

    def run(self):
        d = self.draw
        return d.choice((d.choice(' \naé世=-_.😀0'), d.choice(self.letters))) * d.choice((2, 7, 70, 300))

    def number(self):
        d = self.draw
        return str(d.randrange(10 ** d.randint(1, 15))) + d.choice(('', '.', '%', 'ms', '٣', '²'))

    def make(self, count):
        makers = [self.block, self.code_piece, self.spaces, self.sample_piece, self.sample_piece,
                  self.anything, self.run, self.number]
        out = list(self.SAMPLES) + ['', ' ', '\n', 'a', '\x00']
        while len(out) < count:
            parts = [self.draw.choice(makers)() for _ in range(self.draw.choice((1, 1, 2, 3, 6)))]
            out.append(self.draw.choice(('', ' ')).join(parts))
        return out[:count]


def expected(tokenizer, texts):
    rows = []
    tokenizer.encode_special_tokens = False
    begin = time.perf_counter()
    ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    spent = time.perf_counter() - begin
    tokenizer.encode_special_tokens = True
    for text, i in zip(texts, ids):
        rows.append({'ids': i, 'plain': tokenizer.encode(text, add_special_tokens=False).ids,
                     'text': tokenizer.decode(i, skip_special_tokens=True)})
    return rows, spent


def compare(program, name, folder, texts, report):
    with open(os.path.join(folder, 'tokenizer.json'), encoding='utf-8') as file:
        document = json.load(file)
    document['truncation'] = document['padding'] = None
    theirs, their_time = expected(Tokenizer.from_str(json.dumps(document)), texts)
    run = subprocess.run([program, folder], input='\n'.join(map(json.dumps, texts)) + '\n',
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(f'{name}: {run.stderr}')
    ours = [json.loads(line) for line in run.stdout.split('\n') if line]
    statistics = json.loads(run.stderr)
    differ = 0
    for text, mine, other in zip(texts, ours, theirs, strict=True):
        bad = [k for k in ('ids', 'plain', 'text') if mine[k] != other[k]]
        # Runs of byte tokens that are no text: a stream can't know how long a run will be.
        if mine['stream'].replace('\ufffd', '') != mine['text'].replace('\ufffd', ''):
            bad.append('stream')
        if bad:
            differ += 1
            if differ <= 5:
                print(f'{name}: {bad} differ for {text!r}', file=sys.stderr)
                for k in bad:
                    print(f'  ours   {mine[k]!r}\n  theirs {other.get(k)!r}', file=sys.stderr)
    report.append({'name': f'tokenizer {name}: strings that differ', 'value': differ,
                   'unit': f'of {len(texts)}', 'against': 'tokenizers ' + tokenizers.__version__,
                   'ratio': None, 'bar': '0', 'holds': differ == 0})
    mine, other = (statistics['bytes'] / t / 1e6 for t in (statistics['seconds'], their_time))
    report.append({'name': f'tokenizer {name}: encoding', 'value': round(mine, 2), 'unit': 'MB/s',
                   'against': round(other, 2), 'ratio': round(mine / other, 2), 'bar': None,
                   'holds': None, 'tokens_per_s': round(statistics['tokens'] / statistics['seconds'])})


def write_golden(path, corpus, texts):
    cases = []
    for name in ('gpt2', 'llama3', 'qwen2', 'smollm', 'llama2'):
        document = trained(name, families()[name], corpus, 600 if name == 'llama2' else 360)
        rows, _ = expected(Tokenizer.from_str(json.dumps(document)), texts)
        cases.append({'name': name, 'tokenizer': document,
                      'expected': [[r['ids'], None if r['plain'] == r['ids'] else r['plain'], None if r['text'] == t else r['text']]
                                   for r, t in zip(rows, texts)]})
    with open(path, 'w', encoding='utf-8') as file:
        json.dump({'made_by': f'bench/peers/tokenizers.sh --golden, tokenizers '
                              f'{tokenizers.__version__}', 'texts': texts, 'cases': cases}, file,
                  ensure_ascii=True, separators=(',', ':'))
        file.write('\n')


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--program', required=True)
    arguments.add_argument('--strings', type=int, default=12000)
    arguments.add_argument('--golden')
    arguments.add_argument('folders', nargs='*')
    a = arguments.parse_args()
    corpus = strings(1).make(3000)
    if a.golden:
        return write_golden(a.golden, corpus, [t for t in strings(3).make(150) if len(t) < 90])
    texts, report = strings(2).make(a.strings), []
    with tempfile.TemporaryDirectory() as scratch:
        for name, tokenizer in families().items():
            folder = os.path.join(scratch, name)
            os.mkdir(folder)
            with open(os.path.join(folder, 'tokenizer.json'), 'w', encoding='utf-8') as file:
                json.dump(trained(name, tokenizer, corpus, 3000), file)
            compare(a.program, name, folder, texts, report)
    for folder in a.folders:
        compare(a.program, os.path.basename(os.path.normpath(folder)), folder, texts, report)
    print(json.dumps(report, indent=1))
    return 0 if all(r['holds'] is not False for r in report) else 1


sys.exit(main())
