/* text/pre_kinds.c: the kinds of pre-tokenizer that GGUF files name in tokenizer.ggml.pre, in the
 * spelling of the tokenizer.json files they were converted from. Each name is a family of
 * vocabularies; many share their regular expressions. */
#include "text/internal.h"

#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* The form that GPT-4 brought, by how many digits go together. */
#define GPT4(digits)                                                                               \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Words that begin with a capital letter, as in GPT-4o. */
#define CASED(ending, digits)                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" ending "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES

enum kind {
    KIND_DEFAULT,
    KIND_GPT2,
    KIND_DIGITS,
    KIND_LLAMA3,
    KIND_GPT4,
    KIND_QWEN2,
    KIND_FALCON,
    KIND_TEKKEN,
    KIND_GPT4O,
    KIND_DEEPSEEK_CODER,
    KIND_DEEPSEEK3,
    KIND_BLOOM,
    KIND_VIKING,
    KIND_BAILING,
    KIND_SEED_CODER,
    KIND_COUNT
};

static const struct gguf_pre kinds[KIND_COUNT] = {
    [KIND_DEFAULT] = {{"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"},
                      false,
                      false},
    [KIND_GPT2] = {{GPT2}, false, false},
    [KIND_DIGITS] = {{"\\p{N}", GPT2}, false, false},
    [KIND_LLAMA3] = {{GPT4("\\p{N}{1,3}")}, true, true},
    [KIND_GPT4] = {{GPT4("\\p{N}{1,3}")}, false, false},
    [KIND_QWEN2] = {{GPT4("\\p{N}")}, false, false},
    [KIND_FALCON] = {{"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, false, false},
    [KIND_TEKKEN] = {{CASED("", "\\p{N}")}, true, true},
    [KIND_GPT4O] = {{CASED(CONTRACTION "?", "\\p{N}{1,3}")}, false, false},
    [KIND_DEEPSEEK_CODER] =
        {{"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
          "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+|\\p{N}"},
         false,
         false},
    [KIND_DEEPSEEK3] =
        {{"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
          "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES},
         false,
         false},
    [KIND_BLOOM] = {{" ?[^(\\s|.,!?…。，、।۔،)]+"}, false, false},
    [KIND_VIKING] = {{" ?[^(\\s|.,!?…。，、।۔،)]+", "\\p{N}"}, false, false},
    [KIND_BAILING] = {{"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                       " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
                      false,
                      false},
    [KIND_SEED_CODER] = {{CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                                      " ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES},
                         false,
                         false},
};

/* clang-format off */
static const struct {
    const char *name;
    enum kind kind;
} names[] = {
    {"default", KIND_DEFAULT},
    {"gpt-2", KIND_GPT2}, {"phi-2", KIND_GPT2}, {"mpt", KIND_GPT2}, {"olmo", KIND_GPT2},
    {"jais", KIND_GPT2}, {"trillion", KIND_GPT2}, {"granite-docling", KIND_GPT2},
    {"exaone4", KIND_GPT2}, {"gigachat", KIND_GPT2}, {"a.x-4.0", KIND_GPT2}, {"mellum", KIND_GPT2},
    {"modern-bert", KIND_GPT2}, {"jina-es", KIND_GPT2}, {"jina-de", KIND_GPT2},
    {"jina-v1-en", KIND_GPT2}, {"jina-v2-es", KIND_GPT2}, {"jina-v2-de", KIND_GPT2},
    {"jina-v2-code", KIND_GPT2}, {"roberta-bpe", KIND_GPT2},
    {"starcoder", KIND_DIGITS}, {"refact", KIND_DIGITS}, {"command-r", KIND_DIGITS},
    {"smollm", KIND_DIGITS}, {"codeshell", KIND_DIGITS}, {"exaone", KIND_DIGITS},
    {"minerva-7b", KIND_DIGITS},
    {"llama3", KIND_LLAMA3}, {"llama-v3", KIND_LLAMA3}, {"llama-bpe", KIND_LLAMA3},
    {"falcon3", KIND_LLAMA3}, {"falcon-h1", KIND_LLAMA3}, {"pixtral", KIND_LLAMA3},
    {"midm-2.0", KIND_LLAMA3}, {"lfm2", KIND_LLAMA3},
    {"dbrx", KIND_GPT4}, {"smaug-bpe", KIND_GPT4}, {"glm4", KIND_GPT4}, {"chatglm-bpe", KIND_GPT4},
    {"qwen2", KIND_QWEN2}, {"deepseek-r1-qwen", KIND_QWEN2}, {"kormo", KIND_QWEN2},
    {"megrez", KIND_QWEN2}, {"stablelm2", KIND_QWEN2}, {"hunyuan", KIND_QWEN2},
    {"solar-open", KIND_QWEN2}, {"grok-2", KIND_QWEN2},
    {"falcon", KIND_FALCON}, {"tekken", KIND_TEKKEN},
    {"gpt-4o", KIND_GPT4O}, {"llama4", KIND_GPT4O}, {"minimax-m2", KIND_GPT4O},
    {"deepseek-coder", KIND_DEEPSEEK_CODER},
    {"deepseek-v3", KIND_DEEPSEEK3}, {"hunyuan-dense", KIND_DEEPSEEK3},
    {"bloom", KIND_BLOOM}, {"poro-chat", KIND_BLOOM}, {"gpt3-finnish", KIND_BLOOM},
    {"viking", KIND_VIKING},
    {"bailingmoe", KIND_BAILING}, {"bailingmoe2", KIND_BAILING}, {"llada-moe", KIND_BAILING},
    {"seed-coder", KIND_SEED_CODER},
};
/* clang-format on */

const struct gguf_pre *gguf_pre_find(const char *name, size_t size, bool *known) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i].name) == size && memcmp(names[i].name, name, size) == 0) {
            *known = true;
            return &kinds[names[i].kind];
        }
    *known = false;
    return &kinds[KIND_DEFAULT];
}
