// Expressions that split texts where llama.cpp does (its src/llama-vocab.cpp and src/unicode.cpp),
// also where that differs from the published models' tokenizer.json: files are made for llama.cpp.
// English endings are those of ASCII, without "ſ". White space beyond ASCII matches \s there, and
// no range of characters that holds it.
#include "text/gguf/pre_tokenizers.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "base/try.h"
#include "text/tokenizer/tiktoken_files.h"

namespace moracle {
namespace {

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 = R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))"
                                R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                                R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kJais2 =
    R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S))"
    R"(|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr const char* kQwen2 = R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))"
                               R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                               R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kUfakzeka =
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kMinicpm5 = R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))"
                                  R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                                  R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBailing =
    R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))"
    R"(|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n])"
    R"(|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder = R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))"
                                   R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
                                   R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kExaoneMoe = R"('(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))"
                                   R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N})"
                                   R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+(?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*(?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGraniteEmbedding =
    R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^a-z]]*[\p{L}\p{M}&&[^A-Z]]+)"
    R"((?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^a-z]]+[\p{L}\p{M}&&[^A-Z]]*)"
    R"((?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+)"
                                R"(|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*)"
                                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kAya =
    R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+(?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Chinese characters are these ranges, not the script.
constexpr const char* kKimiK2 =
    R"([\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF})"
    R"(\x{2F800}-\x{2FA1F}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF})"
    R"(\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{2F800}-\x{2FA1F}]]+)"
    R"((?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kSpark =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-)"
    R"(\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386})"
    R"(\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F})"
    R"(\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA})"
    R"(\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-)"
    R"(\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59})"
    R"(\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-)"
    R"(\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2})"
    R"(-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D})"
    R"(\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-)"
    R"(\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-)"
    R"(\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21})"
    R"(-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)";
constexpr const char *kThreeDigits = R"(\p{N}{1,3})", *kDigit = R"(\p{N})",
                     *kCjk = "[一-龥぀-ゟ゠-ヿ]+",
                     *kHanAndHangul = "[一-龥ࠀ-一가-퟿&&\\S]+", *kLines = R"([^\n]+|[\n]+)",
                     *kWordsWithoutStops = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
// Groups of three digits, counted from the last; the text before a number belongs to its first
// group. Only the first group looks for the end of the number: each doing so takes quadratic time.
constexpr const char* kDigitsFromEnd =
    R"((?<=\p{N})\p{N}{3}|\P{N}*+(?:\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\z))";
// The same for ASCII digits among others, where text joins the group before it. A part begins with
// the digits that fill no group, with a group, or with text; each run of text looks once.
constexpr const char* kAsciiDigitsFromEnd =
    R"((?:\A[0-9]{1,3}(?=(?:[0-9]{3})*+(?![0-9]))|[0-9]{3}|(?=[^0-9])))"
    R"((?:[^0-9]++[0-9]{0,2}?(?=(?:[0-9]{3})*+(?![0-9])))*+)";

constexpr GgufPreTokenizer kPreTokenizers[] = {
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {kLlama3},
     true,
     true},
    {"dbrx smaug-bpe chatglm-bpe", {kLlama3}},
    {"glm4 glm5", {kLlama3}, true},
    {"jais-2", {kJais2}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez solar-open grok-2", {kQwen2}},
    {"qwen35", {kQwen35}},
    {"laguna", {kLines, kQwen2}},
    {"ufakzeka", {kUfakzeka}},
    {"minicpm5", {kThreeDigits, kMinicpm5}, true},
    {"bailingmoe bailingmoe2 llada-moe", {kBailing}},
    {"seed-coder", {kSeedCoder}},
    {"exaone-moe", {kExaoneMoe}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {kGpt4o}},
    {"granite-embed-multi-97m", {kGraniteEmbedding}, true},
    {"tiny_aya cohere2moe", {kDigitsFromEnd, kAya}},
    {"tekken", {kTekken}, true, true},
    {"youtu",
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-"
      "ゟ゠-"
      "ヿ]"
      "+",
      kYoutu},
     true},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", {kThreeDigits, kCjk, kDeepSeekV3}},
    {"spark2_5", {kThreeDigits, kCjk, kSpark, kDigit}},
    {"deepseek-llm",
     {"[\r\n]", kDeepSeekLetters, "\\s?[!-/:-~！-／：-～‘-‟、。]+", "\\s+$", kHanAndHangul,
      R"(\p{N}+)"}},
    {"deepseek-coder", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kHanAndHangul, kDigit}},
    {"kimi-k2", {kKimiK2}},
    {"afmoe",
     {kDigitsFromEnd,
      "[一-鿿㐀-䶿\\x{8C48}-\\x{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-"
      "႟ꩠ-"
      "ꩿꧠ-"
      "꧿가-"
      "힯ᄀ-ᇿ]"
      "+",
      kDeepSeekV3}},
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 jina-es jina-de jina-v2-es "
     "jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum modern-bert",
     {kGpt2}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", {kDigit, kGpt2}},
    {"superbpe", {R"(\p{N}+)", kAsciiDigitsFromEnd}},
    {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
    {"poro-chat bloom gpt3-finnish", {kWordsWithoutStops}},
    {"viking", {kWordsWithoutStops, kDigit}},
    {"chameleon",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\t\n]|    |  )", kDigit,
      R"([\p{P}!-/:-@\[-`{-~])", kGpt2},
     false,
     true},
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    // llama.cpp adds the first token even where "add_bos_token" is false.
    {"gemma4 granite-embed-multi-311m", {kLines}, false, true, true},
    {"sarvam-moe", {kLines}, false, false, true},
};

// The expressions in published tokenizer.json files, where they differ from those above. A file
// that is written gets their name.
constexpr const char* kPublishedLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedJais2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S))"
    R"(|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr const char* kPublishedQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedMinicpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n])"
    R"(|\s+(?!\S)|\s+)";
constexpr const char* kPublishedSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kPublishedO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPublishedHanAndHangul = "[一-龥ࠀ-一가-퟿]+";
constexpr const char* kPublishedDigitsFromEnd = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";

constexpr GgufPreTokenizer kPublished[] = {
    {"llama-bpe", {kPublishedLlama3}, true, true},
    {"dbrx", {kPublishedLlama3}},
    {"glm4", {kPublishedLlama3}, true},
    {"jais-2", {kPublishedJais2}},
    {"qwen2", {kPublishedQwen2}},
    {"qwen35", {kPublishedQwen35}},
    {"laguna", {kLines, kPublishedQwen2}},
    {"minicpm5", {kThreeDigits, kPublishedMinicpm5}, true},
    {"bailingmoe", {kPublishedBailing}},
    {"seed-coder", {kPublishedSeedCoder}},
    {"exaone-moe", {kPublishedExaoneMoe}},
    {"gpt-4o", {kPublishedO200k}},
    {"granite-embed-multi-97m", {kPublishedO200k}, true},
    {"tiny_aya", {kPublishedDigitsFromEnd, kPublishedO200k}},
    {"tekken", {kPublishedTekken}, true, true},
    {"youtu",
     {"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-"
      "ゟ゠-"
      "ヿ]"
      "+",
      kPublishedYoutu},
     true},
    {"deepseek-llm",
     {"[\r\n]", kDeepSeekLetters, "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$",
      kPublishedHanAndHangul, R"(\p{N}+)"}},
    {"deepseek-coder", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kPublishedHanAndHangul, kDigit}},
    {"kimi-k2", {kKimiWords}},
    {"afmoe",
     {kPublishedDigitsFromEnd,
      "[一-鿿㐀-䶿\\x{F900}-\\x{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-"
      "႟ꩠ-"
      "ꩿꧠ-"
      "꧿가-"
      "힯ᄀ-ᇿ]"
      "+",
      kDeepSeekV3}},
};

bool lists(std::string_view names, std::string_view name) {
  for (;;) {
    const size_t space = names.find(' ');
    if (names.substr(0, space) == name) return true;
    if (space == names.npos) return false;
    names.remove_prefix(space + 1);
  }
}

// Appends the expressions whose matches a step isolates; false: it does something else.
bool append_splits(const nlohmann::json& step, std::vector<std::string>& splits) {
  const auto member = [&](const char* key) {
    const auto found = step.is_object() ? step.find(key) : step.end();
    return found == step.end() ? nlohmann::json() : *found;
  };
  const nlohmann::json type = member("type");
  if (type == "Sequence") {
    const nlohmann::json steps = member("pretokenizers");
    return steps.is_array() && std::all_of(steps.begin(), steps.end(), [&](const auto& one) {
             return append_splits(one, splits);
           });
  }
  if (type == "ByteLevel") {
    if (member("use_regex") != false) splits.push_back(kGpt2);
    return member("add_prefix_space") == false;
  }
  if (type == "Digits") {
    splits.push_back(member("individual_digits") == true ? kDigit : R"(\p{N}+)");
    return true;
  }
  if (type != "Split") return false;
  const nlohmann::json pattern = member("pattern");
  const auto regex = pattern.is_object() ? pattern.find("Regex") : pattern.end();
  if (regex == pattern.end() || !regex->is_string()) return false;
  splits.push_back(regex->get<std::string>());
  const bool inverted = member("invert") == true;
  return member("behavior") == (inverted ? "Removed" : "Isolated");
}

// Some files have line breaks in expressions, others their escapes.
std::string escaped(std::string_view expression) {
  std::string text;
  for (const char c : expression) {
    const char letter = c == '\r' ? 'r' : c == '\n' ? 'n' : c == '\t' ? 't' : '\0';
    if (letter != '\0') text += '\\';
    text += letter == '\0' ? c : letter;
  }
  return text;
}

bool has_splits(const GgufPreTokenizer& form, const std::vector<std::string>& splits) {
  size_t count = 0;
  while (count < form.splits.size() && form.splits[count] != nullptr) ++count;
  return std::equal(splits.begin(), splits.end(), form.splits.begin(),
                    form.splits.begin() + static_cast<std::ptrdiff_t>(count),
                    [](const std::string& a, const char* b) { return escaped(a) == escaped(b); });
}

}  // namespace

Result<const GgufPreTokenizer*> find_pre_tokenizer(const JsonField& field) {
  if (field.value().is_string()) {
    const auto& name = field.value().get_ref<const std::string&>();
    for (const GgufPreTokenizer& one : kPreTokenizers) {
      if (lists(one.names, name)) return &one;
    }
  } else if (!field.is_null()) {
    return field.bad("a string");
  }
  std::string known;
  for (const GgufPreTokenizer& one : kPreTokenizers) {
    known += known.empty() ? "" : " ";
    known += one.names;
  }
  return field.unsupported("one of " + known);
}

Result<std::string_view> name_pre_tokenizer(const JsonField& pre_tokenizer, bool ignore_merges) {
  std::vector<std::string> splits;
  const bool only_splits = append_splits(pre_tokenizer.value(), splits);
  bool other_merges = false;
  const std::span<const GgufPreTokenizer> all[] = {kPublished, kPreTokenizers};
  for (const std::span<const GgufPreTokenizer> forms : all) {
    for (const GgufPreTokenizer& one : forms) {
      if (!only_splits || one.has_characters || !has_splits(one, splits)) continue;
      if (one.ignore_merges == ignore_merges) return one.names.substr(0, one.names.find(' '));
      other_merges = true;
    }
  }
  if (other_merges) {
    return Error{ErrorKind::kUnsupported, pre_tokenizer.file(), "model.ignore_merges",
                 str(ignore_merges ? "false" : "true",
                     ", as for all pre-tokenizers of GGUF with "
                     "these expressions"),
                 str("it is ", ignore_merges ? "true" : "false")};
  }
  return pre_tokenizer.unsupported(
      "the expressions of a pre-tokenizer of GGUF (docs/formats.md lists them)");
}

}  // namespace moracle
