// Compares Tokenizer and TokenStream with Hugging Face's `tokenizers` on the same texts
// (tools/make_tokenizer_golden.py), and tests invalid files and texts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "paths.h"
#include "text/tokenizer/parse.h"
#include "text/tokenizer/pre_tokenizer/byte_level.h"

namespace moracle::tokenizer_test {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  std::ifstream in(testing::golden_dir() + "/tokenizer/" + name + ".json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return json::parse(text, nullptr, false);
}

/// A byte-level tokenizer without merges. Its ids are the bytes in alphabet order.
json plain_file() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_byte_level(std::string(1, static_cast<char>(byte)), token);
    vocab[token] = byte;
  }
  return {{"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"post_processor", nullptr},
          {"added_tokens", json::array()},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
}

json added_token(int id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Result<Tokenizer> parse(const json& file) {
  return parse_tokenizer(file.dump(), "tokenizer.json");
}

/// Error of a file that must be rejected.
Error refusal(const json& file) {
  auto tokenizer = parse(file);
  if (!tokenizer) return std::move(tokenizer).error();
  ADD_FAILURE() << "accepted";
  return {};
}

void expect_refusal(const json& file, ErrorKind kind, const std::string& place) {
  const Error error = refusal(file);
  EXPECT_EQ(error.kind, kind) << error.to_string();
  EXPECT_EQ(error.place, place) << error.to_string();
  EXPECT_EQ(error.file, "tokenizer.json");
  EXPECT_FALSE(error.need.empty());
}

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, TokenIdsMatchReference) {
  const json fixture = golden(GetParam());
  ASSERT_TRUE(fixture.is_object());
  const auto tokenizer = parse(fixture["tokenizer"]);
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  ASSERT_GT(fixture["cases"].size(), 10u);
  for (const json& one : fixture["cases"]) {
    const auto ids = tokenizer->encode(one["text"].get<std::string>());
    ASSERT_TRUE(ids) << ids.error().to_string();
    EXPECT_EQ(*ids, one["ids"].get<std::vector<int32_t>>()) << one["text"];
  }
}

TEST_P(Golden, StreamMatchesDecode) {
  const json fixture = golden(GetParam());
  const auto tokenizer = parse(fixture["tokenizer"]);
  ASSERT_TRUE(tokenizer);
  for (const json& one : fixture["cases"]) {
    const auto ids = one["ids"].get<std::vector<int32_t>>();
    const auto whole = tokenizer->decode(ids);
    ASSERT_TRUE(whole);
    TokenStream stream(*tokenizer);
    std::string joined;
    for (const int32_t id : ids) {
      const auto piece = stream.push(id, false);
      ASSERT_TRUE(piece);
      joined += *piece;
    }
    joined += stream.finish();
    const auto want = one["decoded"].get<std::string>();
    EXPECT_EQ(joined, want);
    // The stream replaces invalid bytes, as Hugging Face tokenizers does.
    if (want.find("\uFFFD") == std::string::npos) {
      EXPECT_EQ(*whole, want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden,
                         ::testing::Values("gpt2", "qwen", "o200k", "deepseek", "digits",
                                           "digit_runs", "added", "removed", "previous", "next",
                                           "contiguous", "inverted", "dialect", "whole",
                                           "punctuation", "llama", "phi", "llama_metaspace",
                                           "gemma", "unknown", "unknown_fused", "unigram",
                                           "unigram_bytes"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, OpensFolder) {
  const std::filesystem::path folder =
      ::testing::TempDir() + "moracle_tokenizer_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << plain_file().dump();
  const auto tokenizer = Tokenizer::open(folder.string());
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  std::filesystem::remove_all(folder);

  const auto missing = Tokenizer::open(folder.string());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::kBadFile);
}

// The decoder also applies to added tokens: characters of the byte-level alphabet become bytes.
TEST(Tokenizer, DecodesBytesAndAddedTokensExactly) {
  json file = plain_file();
  file["added_tokens"].push_back(added_token(256, "<\u6f22\u00e9>"));
  file["added_tokens"].push_back(added_token(257, "<\u00fb>"));
  const auto tokenizer = parse(file);
  ASSERT_TRUE(tokenizer);
  const std::vector<int32_t> ids{0xE6, 0xBC, 256, 0xFF, 0x00, 257};
  EXPECT_EQ(*tokenizer->decode(ids), std::string("\xE6\xBC<\u6f22\u00e9>\xFF\0<\xFB>", 14));
  EXPECT_EQ(*tokenizer->decode(ids, true), std::string("\xE6\xBC\xFF\0", 4));
  EXPECT_EQ(tokenizer->id("<\u6f22\u00e9>"), 256);
  EXPECT_EQ(tokenizer->id("\u0120"), 0x20);
  EXPECT_EQ(tokenizer->id("nothing"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(256));
  EXPECT_FALSE(tokenizer->is_special(255));
  EXPECT_FALSE(tokenizer->is_special(-1));
  EXPECT_EQ(tokenizer->vocab_size(), 258);
}

TEST(Tokenizer, PutsPostProcessorPrompt) {
  json file = plain_file();
  file["added_tokens"] = {added_token(256, "<s>"), added_token(257, "</s>")};
  const auto special = [](const char* name) {
    return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json tokens = {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}},
                       {"</s>", {{"id", "</s>"}, {"ids", {257}}, {"tokens", {"</s>"}}}}};
  const auto around = [&](const json& single) {
    return json{{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
  };
  const auto prompt = [&](const json& processor) {
    file["post_processor"] = processor;
    auto tokenizer = parse(file);
    EXPECT_TRUE(tokenizer) << tokenizer.error().to_string();
    EXPECT_EQ(*tokenizer->encode("a"), *parse(plain_file())->encode("a"));
    return *tokenizer->encode_prompt("a");
  };
  const int32_t a = parse(plain_file())->encode("a")->front();
  const json begins = around({special("<s>"), text});
  EXPECT_EQ(prompt(nullptr), std::vector<int32_t>({a}));
  EXPECT_EQ(prompt(begins), std::vector<int32_t>({256, a}));
  EXPECT_EQ(prompt(around({special("<s>"), text, special("</s>")})),
            std::vector<int32_t>({256, a, 257}));
  const json steps = {{"type", "ByteLevel"}};
  EXPECT_EQ(prompt({{"type", "Sequence"}, {"processors", {steps, begins}}}),
            std::vector<int32_t>({256, a}));
}

TEST(Tokenizer, ListsIdsWithoutToken) {
  json file = plain_file();
  file["model"]["vocab"].erase("!");
  file["model"]["vocab"]["!!"] = 258;
  const auto tokenizer = parse(file);
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->vocab_size(), 259);
  EXPECT_EQ(tokenizer->ids_without_token(261), (std::vector<int32_t>{'!', 256, 257, 259, 260}));
  EXPECT_EQ(tokenizer->ids_without_token(256), std::vector<int32_t>{'!'});
}

TEST(Tokenizer, RejectsUnknownIds) {
  const auto tokenizer = parse(plain_file());
  ASSERT_TRUE(tokenizer);
  for (const int32_t id : {-1, 256, 1 << 30}) {
    const auto text = tokenizer->decode(std::vector<int32_t>{id});
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().kind, ErrorKind::kInvalidArgument);
  }
}

TEST(Tokenizer, UnigramWithoutUnknownTokenRejectsUnknownCharacters) {
  json file = plain_file();
  file["pre_tokenizer"] = nullptr;
  file["model"] = {{"type", "Unigram"},
                   {"vocab", json::array({json::array({"a", -1}), json::array({"b", -2})})}};
  const auto tokenizer = parse(file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  EXPECT_EQ(*tokenizer->encode("ba"), (std::vector<int32_t>{1, 0}));
  const auto ids = tokenizer->encode("bc");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().place, "model.unk_id");
}

TEST(Tokenizer, NamesByteThatIsNotUtf8) {
  const auto tokenizer = parse(plain_file());
  ASSERT_TRUE(tokenizer);
  const std::string wrong[] = {"ab\xFF", "ab\xC3", "ab\xED\xA0\x80", "ab\xC0\x80",
                               "ab\xF4\x90\x80\x80"};
  for (const std::string& text : wrong) {
    const auto ids = tokenizer->encode(text);
    ASSERT_FALSE(ids);
    EXPECT_EQ(ids.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(ids.error().place, "text, byte 2");
  }
}

TEST(Tokenizer, EncodesLongRunsInBoundedTime) {
  const json fixture = golden("qwen");
  const auto tokenizer = parse(fixture["tokenizer"]);
  ASSERT_TRUE(tokenizer);
#if defined(MORACLE_SANITIZED)
  constexpr size_t kMany = 1 << 16;
#else
  constexpr size_t kMany = 1 << 20;
#endif
  std::string marks;  // pairs of marks in the wrong order, without a base character
  for (size_t i = 0; i < kMany / 4; ++i) marks += i % 2 ? "\u0323" : "\u0301";
  const std::string texts[] = {std::string(kMany, 'a'),  std::string(kMany, ' '),
                               std::string(kMany, '\n'), std::string(kMany, ' ') + "x",
                               std::string(kMany, '<'),  std::move(marks)};
  for (const std::string& text : texts) {
    const auto ids = tokenizer->encode(text);
    ASSERT_TRUE(ids) << ids.error().to_string();
    EXPECT_EQ(tokenizer->decode(*ids)->size(), text.size());
  }
}

TEST(Tokenizer, RejectsTextThatNormalizationMakesTooLong) {
  json file = plain_file();
  const json replace = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1 << 15, 'a')}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {replace, replace, replace}}};
  const auto tokenizer = parse(file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const auto ids = tokenizer->encode("a");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().kind, ErrorKind::kUnsupported);
}

TEST(Tokenizer, MatchesLongAlternationWithoutStackOverflow) {
  json file = plain_file();
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(?:a|b|(?:cd))+"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const auto tokenizer = parse(file);
  ASSERT_TRUE(tokenizer);
  const auto ids = tokenizer->encode(std::string(100'000, 'a'));
  ASSERT_TRUE(ids) << ids.error().to_string();
  EXPECT_EQ(ids->size(), 100'000u);
}

TEST(Tokenizer, StopsExponentialBacktracking) {
  json file = plain_file();
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(?:a|aa)+[xy]"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const auto tokenizer = parse(file);
  ASSERT_TRUE(tokenizer);
  const auto ids = tokenizer->encode(std::string(60, 'a'));
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().kind, ErrorKind::kUnsupported);
}

TEST(Tokenizer, EncodesConcurrently) {
  const json fixture = golden("deepseek");
  const auto tokenizer = parse(fixture["tokenizer"]);
  ASSERT_TRUE(tokenizer);
  const auto& cases = fixture["cases"];
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (const json& one : cases) {
        const auto ids = tokenizer->encode(one["text"].get_ref<const std::string&>());
        count += !ids || *ids != one["ids"].get<std::vector<int32_t>>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

/// Cancels encoding at each progress call.
void expect_to_stop(const Tokenizer& tokenizer, const std::string& text) {
  int calls = 0, until = INT_MAX;
  const Progress progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, static_cast<int64_t>(text.size()));
    EXPECT_LE(done, total);
    return ++calls < until;
  };
  const auto ids = tokenizer.encode(text, progress);
  ASSERT_TRUE(ids) << ids.error().to_string();
  EXPECT_EQ(*ids, *tokenizer.encode(text));
  const int all = calls;
  EXPECT_GE(all, 8);
  for (until = 1; until <= all; until += std::max(3, all / 8)) {
    calls = 0;
    const auto stopped = tokenizer.encode(text, progress);
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
    EXPECT_EQ(calls, until);
  }
}

TEST(Tokenizer, CancelsInsideAndBetweenWords) {
  std::string words;
  while (words.size() < 100'000) words += "a b ";
  json merging = plain_file();
  merging["model"]["vocab"]["aa"] = 256;
  merging["model"]["merges"] = json::array({"a a"});
  expect_to_stop(*parse(merging), std::string(200'000, 'a'));
  expect_to_stop(*parse(merging), words);
  json unigram = plain_file();
  unigram["pre_tokenizer"] = nullptr;
  unigram["model"] = {{"type", "Unigram"},
                      {"unk_id", 0},
                      {"vocab", json::array({json::array({"?", -1}), json::array({"a", -1})})}};
  expect_to_stop(*parse(unigram), std::string(200'000, 'a'));
}

TEST(TokenStream, EmitsCompleteCharactersOnly) {
  const auto tokenizer = parse(plain_file());
  ASSERT_TRUE(tokenizer);
  TokenStream stream(*tokenizer);
  EXPECT_EQ(*stream.push(0xF0), "");
  EXPECT_EQ(*stream.push(0x9F), "");
  EXPECT_EQ(*stream.push(0x98), "");
  EXPECT_EQ(*stream.push(0x80), "\U0001F600");
  EXPECT_EQ(*stream.push(0xE2), "");
  EXPECT_EQ(*stream.push('x'), "\uFFFDx");  // emitted once it can no longer become valid
  EXPECT_EQ(*stream.push(0xFF), "\uFFFD");  // no character begins with this byte
  EXPECT_EQ(*stream.push(0xED), "");
  EXPECT_EQ(*stream.push(0xA0), "\uFFFD\uFFFD");  // a surrogate: both bytes are invalid
  EXPECT_EQ(*stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_FALSE(stream.push(256));
}

TEST(TokenStream, OmitsSpecialTokensOnRequest) {
  json file = plain_file();
  file["added_tokens"].push_back(added_token(256, "<s>"));
  const auto tokenizer = parse(file);
  ASSERT_TRUE(tokenizer);
  TokenStream stream(*tokenizer);
  EXPECT_EQ(*stream.push(0xC3), "");
  EXPECT_EQ(*stream.push(256), "");
  EXPECT_EQ(*stream.push(0xA9), "\u00e9");
  EXPECT_EQ(*stream.push(256, false), "<s>");
}

// This file's decoder strips one space at the start of a text.
TEST(TokenStream, KeepsLeadingSpaceAfterPrompt) {
  const auto tokenizer = parse(golden("llama")["tokenizer"]);
  ASSERT_TRUE(tokenizer);
  const auto ids = tokenizer->encode("a a");
  ASSERT_TRUE(ids);
  ASSERT_EQ(ids->size(), 2u);
  TokenStream alone(*tokenizer), continued(*tokenizer);
  EXPECT_EQ(*alone.push((*ids)[1]), "a");
  ASSERT_TRUE(continued.follow({ids->data(), 1}));
  EXPECT_EQ(*continued.push((*ids)[1]), " a");
  EXPECT_FALSE(continued.follow(std::vector<int32_t>{-1}));
}

TEST(TokenizerFile, RejectsUnsupportedFeaturesByName) {
  const auto with = [](const char* pointer, json value) {
    json file = plain_file();
    file[json::json_pointer(pointer)] = std::move(value);
    return file;
  };
  const auto kind = ErrorKind::kUnsupported;
  const json other = {{"type", "WordPiece"}};
  expect_refusal(with("/pre_tokenizer", other), kind, "pre_tokenizer.type");
  expect_refusal(with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {other}}}), kind,
                 "pre_tokenizer.pretokenizers[0].type");
  expect_refusal(with("/normalizer", {{"type", "Lowercase"}}), kind, "normalizer.type");
  expect_refusal(with("/decoder", nullptr), kind, "decoder");
  expect_refusal(with("/decoder", other), kind, "decoder.type");
  const auto decoders = [&](const json& first, const json& second) {
    return with("/decoder", {{"type", "Sequence"}, {"decoders", {first, second}}});
  };
  const json fuse = {{"type", "Fuse"}};
  const auto strip = [](int stop) {
    return json{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", stop}};
  };
  const auto replace = [](const char* kind_of_pattern) {
    return json{{"type", "Replace"}, {"pattern", {{kind_of_pattern, "ab"}}}, {"content", " "}};
  };
  expect_refusal(decoders(strip(0), fuse), kind, "decoder.decoders[0].type");
  expect_refusal(decoders(fuse, strip(1)), kind, "decoder.decoders[1].stop");
  expect_refusal(decoders(fuse, {{"type", "ByteFallback"}}), kind, "decoder.decoders[1].type");
  expect_refusal(decoders(fuse, replace("String")), kind, "decoder.decoders[1].pattern.String");
  json longest = replace("String");
  longest["content"] = std::string(17, ' ');
  expect_refusal(decoders(longest, fuse), kind, "decoder.decoders[0].content");
  expect_refusal(decoders(replace("Regex"), fuse), kind, "decoder.decoders[0].pattern");
  expect_refusal(with("/post_processor", other), kind, "post_processor.type");
  const auto wraps = [&](const json& piece) {
    return with("/post_processor", {{"type", "TemplateProcessing"}, {"single", {piece}}});
  };
  expect_refusal(wraps({{"Sequence", {{"id", "B"}}}}), kind, "post_processor.single[0]");
  expect_refusal(with("/model/type", "WordPiece"), kind, "model.type");
  expect_refusal(with("/model/dropout", 0.1), kind, "model.dropout");
  expect_refusal(with("/model/end_of_word_suffix", "</w>"), kind, "model.end_of_word_suffix");
  expect_refusal(with("/model/continuing_subword_prefix", "##"), kind,
                 "model.continuing_subword_prefix");
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "(a"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  expect_refusal(with("/pre_tokenizer", split), kind, "pre_tokenizer.pattern.Regex");
}

TEST(TokenizerFile, RejectsWrongTypesAndIds) {
  const auto with = [](const char* pointer, json value) {
    json file = plain_file();
    file[json::json_pointer(pointer)] = std::move(value);
    return file;
  };
  const auto kind = ErrorKind::kBadFile;
  expect_refusal(json::array(), kind, "");
  expect_refusal(with("/model", 1), kind, "model");
  expect_refusal(with("/model/vocab", json::array()), kind, "model.vocab");
  for (const json& id : {json(-1), json(1 << 24), json(0.5), json("1"), json(~0ull)}) {
    expect_refusal(with("/model/vocab/!", id), kind, "model.vocab.!");
  }
  EXPECT_EQ(refusal(with("/model/vocab/!", 7)).kind, kind);  // another token's id
  expect_refusal(with("/model/unk_token", "<unk>"), kind, "model.unk_token");
  json metaspace = {{"type", "Metaspace"}};
  expect_refusal(with("/pre_tokenizer", metaspace), kind, "pre_tokenizer.replacement");
  metaspace["replacement"] = "__";
  expect_refusal(with("/pre_tokenizer", metaspace), kind, "pre_tokenizer.replacement");
  metaspace["replacement"] = "_";
  metaspace["add_prefix_space"] = false;
  expect_refusal(with("/pre_tokenizer", metaspace), kind, "pre_tokenizer.add_prefix_space");
  metaspace["prepend_scheme"] = "last";
  expect_refusal(with("/decoder", metaspace), kind, "decoder.prepend_scheme");
  for (const json& entry : {json(1), json({"a"}), json({"a", -1, 2}), json::object()}) {
    expect_refusal(with("/model", {{"type", "Unigram"}, {"vocab", {entry}}}), kind,
                   "model.vocab[0]");
  }
  const json one = json::array({json::array({"a", -1})});
  expect_refusal(with("/model", {{"type", "Unigram"}, {"unk_id", 1}, {"vocab", one}}), kind,
                 "model.unk_id");
  expect_refusal(with("/model/merges", "a b"), kind, "model.merges");
  for (const json& merge : {json("ab"), json("a b c"), json({"a"}), json({"a", 1}), json("a b")}) {
    expect_refusal(with("/model/merges", json::array({merge})), kind, "model.merges[0]");
  }
  expect_refusal(with("/normalizer", 1), kind, "normalizer.type");
  expect_refusal(with("/pre_tokenizer/use_regex", "yes"), kind, "pre_tokenizer.use_regex");
  expect_refusal(with("/added_tokens", json::array({1})), kind, "added_tokens[0].content");
  expect_refusal(with("/added_tokens", json::array({added_token(256, "")})), kind,
                 "added_tokens[0].content");
  expect_refusal(with("/added_tokens", json::array({added_token(300, "<s>")})), kind,
                 "added_tokens[0].id");
  expect_refusal(with("/added_tokens", json::array({added_token(256, "a")})), kind,
                 "added_tokens[0].id");
  EXPECT_FALSE(parse_tokenizer("{", "tokenizer.json"));
  EXPECT_FALSE(parse_tokenizer("", "tokenizer.json"));
  EXPECT_FALSE(parse_tokenizer(std::string(1 << 20, '['), "tokenizer.json"));
}

}  // namespace
}  // namespace moracle::tokenizer_test
