// Compares tokenizers from the metadata of GGUF files with llama.cpp
// (tools/make_gguf_tokenizer_golden.py), and tests invalid metadata.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/gguf_writer.h"
#include "paths.h"
#include "support/must.h"
#include "support/temporary_folder.h"
#include "text/gguf/gguf_text.h"

namespace moracle::gguf_text_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::must;

const std::string kFile = "model.gguf";

const json& golden() {
  static const json all = json::parse(
      std::ifstream(testing::golden_dir() + "/tokenizer_gguf/cases.json"), nullptr, false);
  return all;
}

json& at(json& metadata, const std::string& key) {
  return metadata["tokenizer.ggml." + key];
}

/// Metadata with a small vocabulary: unknown, <s>, </s>, user-defined <end>, then the tokens.
/// `name`: "bytes", "llama" or "gemma4".
json metadata_of(const std::string& name, const std::string& pre = "qwen2") {
  json metadata = golden()["files"][name];
  if (name == "bytes") at(metadata, "pre") = pre;
  return metadata;
}

Result<Tokenizer> open(const json& metadata) {
  MORACLE_TRY(TokenizerParts parts, read_gguf_tokenizer(metadata, kFile));
  return make_tokenizer(std::move(parts));
}

/// Changes the text and the type of a token.
void set_token(json& metadata, int32_t id, const char* text, int type) {
  at(metadata, "tokens")[id] = text;
  at(metadata, "token_type")[id] = type;
}

void expect_ids(const Tokenizer& tokenizer, const json& want) {
  const json& texts = golden()["texts"];
  ASSERT_GE(texts.size(), 20u);
  ASSERT_EQ(texts.size(), want.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    EXPECT_EQ(json(must(tokenizer.encode(text))), want[i]) << text;
  }
}

TEST(GgufTokenizer, ByteLevelIdsMatchLlamaCppForEachPreTokenizer) {
  ASSERT_GT(golden()["ids"].size(), 40u);
  for (const auto& [pre, ids] : golden()["ids"].items()) {
    SCOPED_TRACE(pre);
    const Tokenizer tokenizer = must(open(metadata_of("bytes", pre)));
    expect_ids(tokenizer, ids);
    for (const json& text : golden()["texts"])
      EXPECT_EQ(json(must(tokenizer.decode(must(tokenizer.encode(text.get<std::string>()))))),
                text);
  }
}

// A lookahead from each digit would take 5 · 10^10 steps.
TEST(GgufTokenizer, LongNumberSplitsOnceFromItsEnd) {
  constexpr size_t kDigits = 400'000;
  const Tokenizer tokenizer = must(open(metadata_of("bytes", "superbpe")));
  const auto ids = must(tokenizer.encode(std::string(kDigits, '7')));
  const auto three = must(tokenizer.encode("777")), one = must(tokenizer.encode("7"));
  ASSERT_EQ(kDigits % 3, 1u);  // so a single digit comes first
  std::vector<int32_t> want = one;
  for (size_t group = 0; group < kDigits / 3; ++group)
    want.insert(want.end(), three.begin(), three.end());
  EXPECT_TRUE(ids == want);
}

// Digits that are not ASCII, and text, join the group before them.
TEST(GgufTokenizer, NumbersOfSeveralScriptsSplitAtGroupsOfAsciiDigits) {
  const Tokenizer tokenizer = must(open(metadata_of("bytes", "superbpe")));
  const auto ids_of = [&](const std::vector<std::string>& words) {
    std::vector<int32_t> ids;
    for (const std::string& word : words) {
      const auto own = must(tokenizer.encode(word));
      ids.insert(ids.end(), own.begin(), own.end());
    }
    return ids;
  };
  EXPECT_EQ(must(tokenizer.encode("１２3456７777")), ids_of({"１２3", "456７", "777"}));
  EXPECT_EQ(must(tokenizer.encode("1234５")), ids_of({"1", "234５"}));
}

TEST(GgufTokenizer, SentencePieceIdsMatchLlamaCpp) {
  expect_ids(must(open(metadata_of("llama"))), golden()["llama"]);
}

TEST(GgufTokenizer, Gemma4IdsMatchLlamaCpp) {
  const Tokenizer tokenizer = must(open(metadata_of("gemma4")));
  expect_ids(tokenizer, golden()["gemma4"]);
  for (const json& text : golden()["texts"])
    EXPECT_EQ(json(must(tokenizer.decode(must(tokenizer.encode(text.get<std::string>()))))), text);
}

/// A tokenizer of single letters and longer tokens with scores, without spaces.
json letters(const std::vector<std::pair<std::string, double>>& longer) {
  json tokens = {"<unk>", "a", "b", "c", "d"}, types = {2, 1, 1, 1, 1}, scores = {0, 0, 0, 0, 0};
  for (const auto& [text, score] : longer) {
    tokens.push_back(text);
    types.push_back(1);
    scores.push_back(score);
  }
  return {{"tokenizer.ggml.model", "llama"},         {"tokenizer.ggml.tokens", tokens},
          {"tokenizer.ggml.token_type", types},      {"tokenizer.ggml.scores", scores},
          {"tokenizer.ggml.unknown_token_id", 0},    {"tokenizer.ggml.add_bos_token", false},
          {"tokenizer.ggml.add_space_prefix", false}};
}

TEST(SentencePieceBpe, MergesBestScoreFirst) {
  const Tokenizer tokenizer = must(open(letters({{"ab", -2}, {"bc", -1}})));
  EXPECT_THAT(must(tokenizer.encode("abc")), ElementsAre(1, 6));
}

TEST(SentencePieceBpe, MergesLeftmostOfEqualScoresFirst) {
  const Tokenizer tokenizer = must(open(letters({{"bc", -1}, {"ab", -1}})));
  EXPECT_THAT(must(tokenizer.encode("abcd")), ElementsAre(6, 3, 4));
}

TEST(SentencePieceBpe, MergesCharactersThatAreNoTokens) {
  const Tokenizer tokenizer = must(open(letters({{"éa", -1}})));
  EXPECT_THAT(must(tokenizer.encode("éa")), ElementsAre(5));
  EXPECT_THAT(must(tokenizer.encode("bé")), ElementsAre(2, 0));
}

TEST(SentencePieceBpe, KeepsNoWholeTextThatMergesDoNotReach) {
  const Tokenizer tokenizer = must(open(letters({{"abcd", 0}})));
  EXPECT_THAT(must(tokenizer.encode("abcd")), ElementsAre(1, 2, 3, 4));
}

TEST(GgufTokenizer, PutsSpaceBeforeTextAndBehindAddedTokens) {
  const Tokenizer with = must(open(metadata_of("llama")));
  json metadata = metadata_of("llama");
  at(metadata, "add_space_prefix") = false;
  const Tokenizer without = must(open(metadata));
  EXPECT_EQ(must(with.encode("def")), must(without.encode(" def")));
  EXPECT_EQ(must(with.encode("<s>def")), must(without.encode("<s> def")));
  EXPECT_EQ(must(with.decode(must(with.encode("def")))), "def");
  EXPECT_EQ(must(without.decode(must(without.encode(" def")))), " def");
}

TEST(GgufTokenizer, AddsTokensAroundPromptsAsFileOrPreTokenizerSays) {
  const auto prompt = [](const json& metadata) {
    return must(must(open(metadata)).encode_prompt(""));
  };
  EXPECT_THAT(prompt(metadata_of("bytes", "qwen2")), IsEmpty());
  EXPECT_THAT(prompt(metadata_of("bytes", "llama-bpe")), ElementsAre(1));
  EXPECT_THAT(prompt(metadata_of("llama")), ElementsAre(1));
  json metadata = metadata_of("bytes", "llama-bpe");
  at(metadata, "add_bos_token") = false;
  at(metadata, "add_eos_token") = true;
  EXPECT_THAT(prompt(metadata), ElementsAre(2));
  json gemma = metadata_of("gemma4");
  at(gemma, "add_bos_token") = false;
  EXPECT_THAT(prompt(gemma), ElementsAre(1)) << "llama.cpp corrects old files";
}

TEST(GgufTokenizer, DecodingSkipsControlTokensAndKeepsUserDefinedOnes) {
  json metadata = metadata_of("bytes");
  set_token(metadata, 3, "üü", 4);  // as bytes, its characters stand for 0xFC
  const Tokenizer tokenizer = must(open(metadata));
  EXPECT_THAT(must(tokenizer.encode("<s>üü")), ElementsAre(1, 3));
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_FALSE(tokenizer.is_special(3));
  EXPECT_EQ(must(tokenizer.decode(std::vector<int32_t>{1, 3}, true)), "üü");
}

TEST(GgufTokenizer, FindsEndTokensByRoleAndText) {
  json metadata = metadata_of("bytes");
  set_token(metadata, 1, "<|return|>", 3);
  set_token(metadata, 2, "[other]", 3);
  set_token(metadata, 3, "<|end|>", 1);
  const Tokenizer tokenizer = must(open(metadata));
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_THAT(tokenizer.end_ids(), ElementsAre(1, 2, 3));
  EXPECT_THAT(must(tokenizer.encode("<|end|>")), ElementsAre(3)) << "its type is normal";
  at(metadata, "eot_token_id") = 7;
  set_token(metadata, 0, "<|call|>", 3);
  // GPT-OSS ends each message with <|end|>.
  EXPECT_THAT(must(open(metadata)).end_ids(), ElementsAre(0, 1, 2, 7));
}

TEST(GgufTokenizer, Phi3TokensTakeWhiteSpaceBehindThem) {
  json metadata = metadata_of("bytes");
  const auto size = [&] { return must(must(open(metadata)).encode("<end>  \n<s> ")).size(); };
  metadata["general.name"] = "Qwen";
  const size_t plain = size();
  metadata["general.name"] = "Phi3";
  EXPECT_LT(size(), plain);
  EXPECT_EQ(size(), 3u) << "<s> leaves it";
}

TEST(GgufTokenizer, NamesEmptyTokensByTheirIds) {
  json metadata = metadata_of("bytes");
  set_token(metadata, 3, "", 1);
  EXPECT_EQ(must(open(metadata)).id("[EMPTY_3]"), 3);
}

struct Wrong {
  const char* file;
  const char* key;
  json value;
  const char* message;
};

TEST(GgufTokenizer, RejectsWrongMetadataByKey) {
  const json long_token = std::string(4097, 'x');
  const Wrong cases[] = {
      {"bytes", "model", 5, "model: needs a string; it is 5"},
      {"bytes", "model", "bert", "WordPiece is not read; it is \"bert\""},
      {"bytes", "model", "t5", "its map of normalized characters is not read; it is"},
      {"bytes", "model", "rwkv", "greedy search"},
      {"bytes", "model", "plamo2", "table of suffixes"},
      {"bytes", "model", "none", "model: needs gpt2, llama or gemma4; it is \"none\""},
      {"bytes", "pre", 5, "pre: needs a string; it is 5"},
      {"bytes", "pre", "qwen", "pre: needs one of llama-bpe llama3"},
      {"bytes", "pre", "llama-bpe llama3", "pre: needs one of"},
      {"bytes", "tokens", 5, "tokens: needs an array of texts of tokens; it is 5"},
      {"bytes", "tokens", json::array(), "tokens: needs an array of texts"},
      {"bytes", "tokens/5", 5, "tokens[5]: needs the text of a token; it is 5"},
      {"bytes", "tokens/5", "\xff", "tokens[5]: needs UTF-8"},
      {"bytes", "tokens/5", "<s>", "tokens[5]: needs a text that no other token has; it is"},
      {"bytes", "tokens/3", long_token, "tokens[3]: needs at most 4096 bytes in a token of type 4"},
      {"bytes", "token_type", 5, "token_type: needs an array of types of tokens; it is 5"},
      {"bytes", "token_type", json::array({1}), " values, one per token; it has 1"},
      {"bytes", "token_type/5", 7, "token_type[5]: needs a whole number from 0 to 6; it is 7"},
      {"bytes", "token_type/5", 1.5, "token_type[5]: needs a whole number from 0 to 6"},
      {"bytes", "merges", 5, "merges: needs an array of pairs of tokens; it is 5"},
      {"bytes", "merges/5", 5, "merges[5]: needs a pair of tokens; it is 5"},
      {"bytes", "merges/5", "ab", "merges[5]: needs two tokens with one space between them"},
      {"bytes", "merges/5", "a nothing", "merges[5]: needs a pair whose tokens and result are"},
      {"bytes", "scores", 5, "scores: needs an array of scores of tokens; it is 5"},
      {"bytes", "scores", json::array({1}), "scores: needs an array of"},
      {"llama", "scores/5", "x", "scores[5]: needs a number; it is \"x\""},
      {"llama", "scores/5", NAN, "scores[5]: needs a finite number; it is NaN"},
      {"bytes", "bos_token_id", -1, "bos_token_id: needs a whole number from 0 to"},
      {"bytes", "eos_token_id", 100000, "eos_token_id: needs a whole number from 0 to"},
      {"bytes", "eot_token_id", "2", "eot_token_id: needs a whole number"},
      {"bytes", "eom_token_id", 1.5, "eom_token_id: needs a whole number"},
      {"bytes", "unknown_token_id", 100000, "unknown_token_id: needs a whole number"},
      {"bytes", "padding_token_id", 100000, "padding_token_id: needs a whole number"},
      {"bytes", "fim_pad_token_id", 100000, "fim_pad_token_id: needs a whole number"},
      {"bytes", "add_bos_token", 1, "add_bos_token: needs true or false; it is 1"},
      {"bytes", "add_eos_token", "no", "add_eos_token: needs true or false"},
      {"bytes", "add_space_prefix", 1, "add_space_prefix: needs true or false"},
      {"llama", "remove_extra_whitespaces", true, "remove_extra_whitespaces: needs false; it is"},
      {"llama", "remove_extra_whitespaces", 1, "remove_extra_whitespaces: needs true or false"},
      {"llama", "precompiled_charsmap", json::array({1}), "precompiled_charsmap: needs an empty"},
      {"llama", "precompiled_charsmap", "x", "precompiled_charsmap: needs an array of bytes"},
  };
  for (const auto& [file, key, value, message] : cases) {
    json metadata = metadata_of(file);
    const std::string name = key;
    const size_t slash = name.find('/');
    json& field = at(metadata, name.substr(0, slash));
    if (slash == name.npos)
      field = value;
    else
      field[std::stoul(name.substr(slash + 1))] = value;
    const auto tokenizer = open(metadata);
    ASSERT_FALSE(tokenizer) << key << ' ' << message;
    const std::string text = tokenizer.error().to_string();
    EXPECT_THAT(text, HasSubstr(message));
    EXPECT_EQ(text.find("model.gguf: tokenizer.ggml."), 0u) << text;
  }
  json metadata = metadata_of("bytes");
  metadata["general.name"] = 5;
  EXPECT_THAT(open(metadata).error().to_string(), HasSubstr("general.name: needs a string"));
}

TEST(GgufTokenizer, NeedsEachKeyThatHasNoDefault) {
  const std::pair<const char*, std::vector<std::string>> required[] = {
      {"bytes", {"model", "pre", "tokens", "token_type", "merges", "bos_token_id"}},
      {"llama", {"model", "tokens", "token_type", "scores", "bos_token_id"}},
      {"gemma4", {"model", "tokens", "token_type", "merges", "bos_token_id"}},
  };
  for (const auto& [file, keys] : required) {
    const json complete = metadata_of(file, "llama-bpe");
    for (const auto& [key, value] : complete.items()) {
      SCOPED_TRACE(str(file, ' ', key));
      json metadata = complete;
      metadata.erase(key);
      const bool needed = std::find_if(keys.begin(), keys.end(), [&, &whole = key](const auto& k) {
                            return whole == "tokenizer.ggml." + k;
                          }) != keys.end();
      const auto tokenizer = open(metadata);
      ASSERT_EQ(tokenizer.ok(), !needed);
      if (needed) {
        EXPECT_THAT(tokenizer.error().to_string(), HasSubstr(key + ": needs"));
        EXPECT_THAT(tokenizer.error().to_string(), HasSubstr("it is missing"));
      }
    }
  }
  json metadata = metadata_of("llama");
  set_token(metadata, 4, "<0x00>x", 1);
  EXPECT_TRUE(open(metadata).ok());
  metadata.erase("tokenizer.ggml.unknown_token_id");
  EXPECT_THAT(open(metadata).error().to_string(), HasSubstr("because not every byte has one"));
}

TEST(GgufChat, ReadsTemplatesAndSpecialTokens) {
  json metadata = metadata_of("bytes");
  metadata["tokenizer.chat_template"] = "{{ bos_token }}{{ eos_token }}";
  metadata["tokenizer.chat_template.tool_use"] = "tools";
  const ChatFiles files = must(read_gguf_chat(metadata, kFile));
  EXPECT_EQ(files.text, "{{ bos_token }}{{ eos_token }}");
  EXPECT_EQ(files.tools_text, "tools");
  EXPECT_EQ(files.special_tokens.at("bos_token"), "<s>");
  EXPECT_EQ(files.special_tokens.at("eos_token"), "</s>");
  EXPECT_EQ(files.special_tokens.at("unk_token"), "<unk>");
  EXPECT_EQ(files.special_tokens.count("pad_token"), 0u);
}

TEST(GgufChat, RejectsWrongTemplatesByKey) {
  json metadata = metadata_of("bytes");
  const auto error = [&] { return read_gguf_chat(metadata, kFile).error().to_string(); };
  EXPECT_EQ(error(), "model.gguf: tokenizer.chat_template: needs a chat template; it is missing");
  metadata["tokenizer.chat_template"] = 5;
  EXPECT_EQ(error(), "model.gguf: tokenizer.chat_template: needs a string; it is 5");
  metadata["tokenizer.chat_template"] = "x";
  metadata["tokenizer.chat_template.tool_use"] = 5;
  EXPECT_EQ(error(), "model.gguf: tokenizer.chat_template.tool_use: needs a string; it is 5");
}

TEST(GgufFile, OpensTokenizerAndChatTemplate) {
  const testing::TemporaryFolder folder;
  testing::GgufWriter writer;
  const json metadata = metadata_of("bytes");
  for (const auto& [key, value] : metadata.items()) writer.set(key, value);
  writer.set("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
  writer.write(folder.path() + "/model.gguf");
  for (const std::string& path : {folder.path(), folder.path() + "/model.gguf"}) {
    const Tokenizer tokenizer = must(Tokenizer::open(path));
    expect_ids(tokenizer, golden()["ids"]["qwen2"]);
    EXPECT_THAT(tokenizer.end_ids(), ElementsAre(2));
    const ChatTemplate chat = must(ChatTemplate::open(path));
    const ChatMessage message{"user", "hello"};
    EXPECT_EQ(must(chat.render({&message, 1})), "<s>hello");
  }
}

}  // namespace
}  // namespace moracle::gguf_text_test
