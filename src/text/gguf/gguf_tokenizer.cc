#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "text/gguf/gguf_text.h"
#include "text/gguf/gguf_tokens.h"
#include "text/gguf/pre_tokenizers.h"
#include "text/tokenizer/pre_tokenizer/byte_level.h"

namespace moracle {
namespace gguf_tokenizer {
namespace {

using Json = nlohmann::json;

JsonField member(const JsonField& metadata, std::string_view name) {
  return metadata[gguf_tokenizer_key(name)];
}

constexpr GgufPreTokenizer kSentencePiece{"", {}, false, true, true};

struct Unread {
  const char *model, *reason;
};
constexpr Unread kUnread[] = {{"t5", "its map of normalized characters is not read"},
                              {"bert", "WordPiece is not read"},
                              {"rwkv", "its greedy search for the longest token is not read"},
                              {"plamo2", "its table of suffixes is not read"}};

/// The model's pre-tokenizer.
Result<const GgufPreTokenizer*> find_form(const JsonField& metadata) {
  const JsonField model = member(metadata, "model");
  MORACLE_TRY(const std::string name, model.text());
  if (name == "llama") return &kSentencePiece;
  if (name == "gpt2") return find_pre_tokenizer(member(metadata, "pre"));
  if (name == "gemma4") {
    const Json pre = "gemma4";
    return find_pre_tokenizer(JsonField(pre, metadata.file()));
  }
  std::string need = "gpt2, llama or gemma4";
  for (const Unread& one : kUnread) {
    if (name == one.model) need += str("; ", one.reason);
  }
  return model.unsupported(need);
}

Status refuse_normalization(const JsonField& metadata) {
  const JsonField extra = member(metadata, "remove_extra_whitespaces");
  MORACLE_TRY(const bool removes, extra.flag_or(false));
  if (removes) return extra.unsupported("false");
  const JsonField map = member(metadata, "precompiled_charsmap");
  if (map.value().empty()) return {};
  if (!map.value().is_array()) return map.bad("an array of bytes");
  return map.unsupported("an empty array, because maps of normalized characters are not read");
}

/// Numbers of "scores", one per token. `needed`: they may not be missing.
Result<std::vector<double>> read_scores(const JsonField& metadata, size_t num_tokens, bool needed) {
  const JsonField field = member(metadata, "scores");
  if (field.is_null() && !needed) return std::vector<double>();
  if (!field.value().is_array()) return field.bad("an array of scores of tokens");
  if (field.value().size() != num_tokens) {
    return Error{ErrorKind::kBadFile, field.file(), field.place(),
                 str("an array of ", num_tokens, " values, one per token"),
                 str("it has ", field.value().size())};
  }
  std::vector<double> scores;
  scores.reserve(num_tokens);
  for (size_t id = 0; id < num_tokens; ++id) {
    const JsonField score(field.value()[id], field.file());
    const auto number = score.number();
    if (!number) {
      return JsonField(score.value(), field.file(), str(field.place(), '[', id, ']'))
          .bad(number.error().need);
    }
    scores.push_back(*number);
  }
  return scores;
}

/// Ranks of tokens, best score first. Equal scores get one rank.
std::vector<int32_t> ranks_of(const std::vector<double>& scores) {
  std::vector<int32_t> order(scores.size()), ranks(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](int32_t id) { return scores[static_cast<size_t>(id)]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
  int32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
    ranks[static_cast<size_t>(order[i])] = rank;
  }
  return ranks;
}

Result<TokenModel> make_sentence_piece(const JsonField& metadata, const GgufTokens& tokens,
                                       Vocabulary vocabulary, const std::vector<double>& scores) {
  std::string all_bytes(256, '\0');
  std::iota(all_bytes.begin(), all_bytes.end(), '\0');
  std::vector<int32_t> ids;
  int32_t unknown = -1;
  if (!ByteTokens(vocabulary).append(all_bytes, ids)) {
    MORACLE_TRY(unknown,
                tokens.required(metadata, "unknown_token_id",
                                "the id of the unknown token, because not every byte has one"));
  }
  return TokenModel(RankedBpe::of_characters(std::move(vocabulary), ranks_of(scores), unknown));
}

/// Steps in tokenizer.json's format. "▁" replaces each space, and precedes a text that begins a
/// prompt or follows an added token.
Json normalizer_of(bool has_characters, bool space_first) {
  if (!has_characters) return nullptr;
  Json steps = Json::array();
  if (space_first) steps.push_back({{"type", "Prepend"}, {"prepend", "▁"}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}});
  return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

Json pretokenizer_of(const GgufPreTokenizer& form) {
  Json steps = Json::array();
  for (const char* split : form.splits) {
    if (split == nullptr) break;
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", split}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  if (!form.has_characters)
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

Json decoder_of(bool has_characters, bool space_first) {
  if (!has_characters) return {{"type", "ByteLevel"}};
  Json steps = {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                {{"type", "ByteFallback"}},
                {{"type", "Fuse"}}};
  if (space_first)
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

Result<bool> is_phi3(const JsonField& metadata) {
  const JsonField field = metadata["general.name"];
  if (field.is_null()) return false;
  MORACLE_TRY(std::string name, field.text());
  return is_gguf_phi3(std::move(name));
}

/// "added_tokens" in tokenizer.json's format.
Json added_tokens_of(const GgufTokens& tokens, bool rstrip) {
  Json added = Json::array();
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    if (!tokens.is_added(id)) continue;
    const std::string& text = tokens.texts[id];
    const bool plain = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
    added.push_back({{"id", id},
                     {"content", text},
                     {"special", tokens.is_special(id)},
                     {"lstrip", false},
                     {"rstrip", rstrip && !plain},
                     {"single_word", false},
                     {"normalized", false}});
  }
  return added;
}

/// The texts of added tokens are no bytes. The decoder takes every text for bytes.
void spell_in_bytes(const AddedTokens& added, TokenTable& table) {
  for (const AddedToken& token : added.all()) {
    std::string text;
    append_byte_level(token.content, text);
    table.set_text(token.id, std::move(text));
  }
}

Result<PostProcessor> read_post_processor(const JsonField& metadata, const GgufTokens& tokens,
                                          const GgufPreTokenizer& form) {
  PostProcessor processor;
  MORACLE_TRY(bool adds_bos, member(metadata, "add_bos_token").flag_or(form.adds_bos));
  // llama.cpp corrects old files of Gemma 4, which have false.
  adds_bos = adds_bos || (form.adds_bos && form.has_characters && form.splits[0] != nullptr);
  MORACLE_TRY(const bool adds_eos, member(metadata, "add_eos_token").flag_or(false));
  if (adds_bos) {
    MORACLE_TRY(const int32_t id, tokens.required(metadata, "bos_token_id",
                                                  "the id of the token that begins each prompt"));
    processor.before.push_back(id);
  }
  if (adds_eos) {
    MORACLE_TRY(const int32_t id, tokens.required(metadata, "eos_token_id",
                                                  "the id of the token that ends each prompt"));
    processor.after.push_back(id);
  }
  return processor;
}

}  // namespace
}  // namespace gguf_tokenizer

bool is_gguf_phi3(std::string model_name) {
  std::transform(model_name.begin(), model_name.end(), model_name.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return model_name.find("phi-3") != model_name.npos || model_name.find("phi3") != model_name.npos;
}

Result<TokenizerParts> read_gguf_tokenizer(const nlohmann::json& metadata,
                                           const std::string& file) {
  using namespace gguf_tokenizer;
  const JsonField root(metadata, file);
  MORACLE_TRY(const GgufPreTokenizer* const form, find_form(root));
  const bool sentence_piece = form == &kSentencePiece;
  MORACLE_CHECK(refuse_normalization(root));
  MORACLE_TRY(const GgufTokens tokens, GgufTokens::read(root));
  MORACLE_TRY(const auto scores, read_scores(root, tokens.texts.size(), sentence_piece));
  MORACLE_TRY(bool space_first, member(root, "add_space_prefix").flag_or(sentence_piece));
  space_first = space_first && sentence_piece;
  MORACLE_TRY(PostProcessor post_processor, read_post_processor(root, tokens, *form));
  MORACLE_TRY(const bool rstrip, is_phi3(root));

  Vocabulary vocabulary;
  for (size_t id = 0; id < tokens.texts.size(); ++id)
    vocabulary.add(tokens.texts[id], static_cast<int32_t>(id));
  const auto make_model = [&]() -> Result<TokenModel> {
    if (sentence_piece) return make_sentence_piece(root, tokens, std::move(vocabulary), scores);
    MORACLE_TRY(Bpe bpe, Bpe::make(std::move(vocabulary), member(root, "merges"),
                                   form->ignore_merges, form->has_characters));
    return TokenModel(std::move(bpe));
  };
  MORACLE_TRY(TokenModel model, make_model());
  const auto parse = [&](auto reader, const Json& json) { return reader(JsonField(json, file)); };
  MORACLE_TRY(Normalizer normalizer,
              parse(Normalizer::parse, normalizer_of(form->has_characters, space_first)));
  MORACLE_TRY(Pretokenizer pretokenizer, parse(Pretokenizer::parse, pretokenizer_of(*form)));
  MORACLE_TRY(Decoder decoder,
              parse(Decoder::parse, decoder_of(form->has_characters, space_first)));
  const Json listed = added_tokens_of(tokens, rstrip);
  const JsonField added_field(listed, file, gguf_tokenizer_key("tokens"));
  MORACLE_TRY(AddedTokens added, AddedTokens::parse(added_field, vocabulary_of(model), normalizer));
  MORACLE_TRY(TokenTable table, TokenTable::make(vocabulary_of(model), added, added_field));
  if (!form->has_characters) spell_in_bytes(added, table);
  return TokenizerParts{std::move(normalizer),
                        std::move(pretokenizer),
                        std::move(model),
                        std::move(added),
                        std::move(table),
                        std::move(decoder),
                        std::move(post_processor),
                        tokens.text_of("eos_token_id").value_or(""),
                        tokens.ends()};
}

}  // namespace moracle
