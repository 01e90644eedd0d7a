#include "text/gguf/write_gguf_text.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/json/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "checkpoint/config.h"
#include "text/chat_files.h"
#include "text/gguf/gguf_text.h"
#include "text/gguf/gguf_tokens.h"
#include "text/gguf/pre_tokenizers.h"
#include "text/tokenizer/parse.h"
#include "text/tokenizer/tokenizer_config.h"

namespace moracle {
namespace write_gguf_text_file {
namespace {

using Json = nlohmann::json;

// Texts in which pre-tokenizers differ: digits, marks, white space, endings, scripts, capitals.
constexpr const char* kSamples[] = {
    "Hello world",
    " a  b   c\t\td \n\n e\r\n  \n",
    "I'm he'LL we've IT'S don't",
    "1 12 123 1234 12345.6789e-10 ١٢٣",
    "camelCase HTTPServer aBC XMLHttp2Request",
    "!!! ?? ... <= >= != // /* */ #include $x @y ~z `q` {a:[b]}",
    "naïve café Ångström ß ﬁ",
    "中文字符，日本語テキスト。한국어 문장",
    "สวัสดีครับ नमस्ते שלום مرحبا",
    "😀👩‍👩‍👧 🇩🇪 ✓",
    "   leading and trailing   ",
    "line\n\nbreaks\n \n\ttabs",
};

class TextWriter {
 public:
  // A path may end with a slash.
  static std::string name_of(const std::filesystem::path& folder) {
    return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  }

  TextWriter(const std::string& folder, int64_t vocab_size, const std::vector<int32_t>& ends)
      : folder_(folder),
        file_(folder + "/tokenizer.json"),
        name_(name_of(folder)),
        vocab_size_(vocab_size),
        ends_(ends) {}

  Result<WrittenGgufText> run() {
    to_.metadata["general.name"] = name_;
    MORACLE_CHECK(add_chat());
    if (is_absent(file_)) {
      for (const char* other : {"tekken.json", "tiktoken.model", "tokenizer.model"}) {
        const std::string path = str(folder_, "/", other);
        if (is_absent(path)) continue;
        return Error{ErrorKind::kUnsupported, path, "", "a tokenizer.json, to write GGUF",
                     "the folder has none"};
      }
      put("model", "none");
      if (!ends_.empty()) put("eos_token_id", ends_[0]);
      to_.left_out.emplace_back("a tokenizer, because the folder has none");
      return std::move(to_);
    }
    MORACLE_TRY(const std::string text, read_small_file(file_));
    MORACLE_TRY(document_, parse_json(text, file_));
    MORACLE_TRY(const TokenizerConfig config, TokenizerConfig::read(folder_));
    MORACLE_TRY(TokenizerParts parts, parse_tokenizer_parts(document_, file_, config));
    MORACLE_CHECK(add_model());
    MORACLE_CHECK(add_tokens(parts));
    MORACLE_CHECK(sentence_piece_ ? add_scores(parts) : add_merges());
    MORACLE_CHECK(add_roles(parts));
    MORACLE_CHECK(check_same(make_tokenizer(std::move(parts))));
    return std::move(to_);
  }

 private:
  void put(std::string_view name, Json value) {
    to_.metadata[gguf_tokenizer_key(name)] = std::move(value);
  }
  Error unsupported(std::string place, std::string need, std::string fact) const {
    return {ErrorKind::kUnsupported, file_, std::move(place), std::move(need), std::move(fact)};
  }

  Status add_chat() {
    const bool in_file = !is_absent(folder_ + "/chat_template.jinja");
    const std::string config = folder_ + "/tokenizer_config.json";
    bool in_config = false;
    if (!is_absent(config)) {
      MORACLE_TRY(const Config values, Config::open(config));
      in_config = values.has({"chat_template"});
    }
    if (!in_file && !in_config) return {};
    MORACLE_TRY(ChatFiles chat, read_chat_files(folder_));
    to_.metadata["tokenizer.chat_template"] = std::move(chat.text);
    if (chat.tools_text.empty()) return {};
    to_.metadata["tokenizer.chat_template.tool_use"] = std::move(chat.tools_text);
    to_.metadata["tokenizer.chat_templates"] = Json::array({"tool_use"});
    return {};
  }

  // The steps of a normalizer or of a pre-tokenizer.
  static std::vector<Json> steps_of(const Json& whole, const char* key) {
    if (whole.is_null()) return {};
    if (whole.is_object() && whole.value("type", Json()) == "Sequence" && whole.contains(key))
      return whole[key].get<std::vector<Json>>();
    return {whole};
  }

  Status add_model() {
    const JsonField root(document_, file_), model = root["model"];
    if (model["type"].value() == "Unigram") return model["type"].unsupported("BPE");
    std::vector<Json> steps;
    const JsonField normalizer = root["normalizer"], pre_tokenizer = root["pre_tokenizer"],
                    pre_tokenizer_type = pre_tokenizer["type"];
    for (Json& step : steps_of(normalizer.value(), "normalizers")) steps.push_back(std::move(step));
    const Json &words = pre_tokenizer.value(), &word_type = pre_tokenizer_type.value();
    bool space_first = false, spaces = false;
    if (word_type == "Metaspace") {
      spaces = true;
      const bool always = words.value("add_prefix_space", true);
      space_first = words.value("prepend_scheme", Json(always ? "always" : "never")) != "never";
    }
    for (const Json& step : steps) {
      const Json type = step.value("type", Json());
      if (type == "NFC") {
        to_.left_out.emplace_back("NFC normalization of texts, for which GGUF has no key");
        composes_ = true;
      } else if (type == "Prepend" && step.value("prepend", Json()) == "▁") {
        space_first = true;
      } else if (type == "Replace" && step.value("content", Json()) == "▁") {
        spaces = true;
      } else {
        return root["normalizer"].unsupported("no normalizer, NFC, or ▁ for spaces");
      }
    }
    if (spaces) {
      sentence_piece_ = true;
      if (word_type != "Metaspace" && !words.is_null())
        return root["pre_tokenizer"].unsupported("none beside ▁ for spaces");
      put("model", "llama");
      put("pre", "default");
      put("add_space_prefix", space_first);
      return {};
    }
    MORACLE_TRY(const bool ignore_merges, model["ignore_merges"].flag_or(false));
    MORACLE_TRY(const std::string_view pre,
                name_pre_tokenizer(root["pre_tokenizer"], ignore_merges));
    put("model", "gpt2");
    put("pre", pre);
    return {};
  }

  Status add_tokens(const TokenizerParts& parts) {
    if (parts.tokens.end_of_ids() > vocab_size_) {
      return unsupported("added_tokens",
                         str("ids below ", vocab_size_, ", the rows of the embedding"),
                         str("the largest is ", parts.tokens.end_of_ids() - 1));
    }
    Json texts = Json::array(), types = Json::array();
    std::map<int32_t, const AddedToken*> added;
    const std::vector<AddedToken>& all = parts.added.all();
    const bool strips =
        std::any_of(all.begin(), all.end(), [](const AddedToken& token) { return token.rstrip; });
    const bool phi3 = strips && is_gguf_phi3(name_);
    // The name would make all of them take the white space behind them.
    if (!phi3 && is_gguf_phi3(name_)) to_.metadata.erase("general.name");
    for (const AddedToken& token : all) {
      added[token.id] = &token;
      const std::string& text = token.content;
      const bool plain = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
      if (!token.lstrip && !token.single_word && token.rstrip == (phi3 && !plain)) continue;
      return unsupported(str("added token '", text, "'"),
                         "flags that GGUF can express: no lstrip, no single_word, and rstrip only "
                         "as Phi-3 has it",
                         str("lstrip is ", token.lstrip, ", single_word ", token.single_word,
                             ", rstrip ", token.rstrip));
    }
    const JsonField unknown_field = JsonField(document_, file_)["model"]["unk_token"];
    const Json& unknown = unknown_field.value();
    for (int32_t id = 0; id < vocab_size_; ++id) {
      const TokenText* const token = parts.tokens.find(id);
      GgufTokenType type = GgufTokenType::kNormal;
      if (token == nullptr) {
        type = GgufTokenType::kUnused;
      } else if (unknown == token->text) {
        type = GgufTokenType::kUnknown;
      } else if (added.contains(id)) {
        type = added[id]->special ? GgufTokenType::kControl : GgufTokenType::kUserDefined;
      } else if (sentence_piece_ && is_byte(token->text)) {
        type = GgufTokenType::kByte;
      }
      texts.push_back(token == nullptr ? str("[PAD", id, "]") : token->text);
      types.push_back(static_cast<int>(type));
    }
    put("tokens", std::move(texts));
    put("token_type", std::move(types));
    return {};
  }
  static bool is_byte(const std::string& text) {
    return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
  }

  Result<std::vector<std::pair<std::string, std::string>>> merges() const {
    const JsonField field = JsonField(document_, file_)["model"]["merges"];
    MORACLE_TRY(const std::vector<JsonField> all, field.items());
    std::vector<std::pair<std::string, std::string>> pairs;
    pairs.reserve(all.size());
    for (const JsonField& merge : all) {
      const Json& value = merge.value();
      if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
        pairs.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
        continue;
      }
      MORACLE_TRY(const std::string text, merge.text());
      const size_t space = text.find(' ');
      if (space == text.npos) return merge.bad("two tokens with a space between them");
      pairs.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
    return pairs;
  }

  Status add_merges() {
    MORACLE_TRY(const auto pairs, merges());
    Json texts = Json::array();
    for (const auto& [left, right] : pairs) {
      if (left.find(' ') != left.npos || right.find(' ') != right.npos)
        return unsupported("model.merges", "tokens without spaces",
                           str("'", left, "', '", right, "'"));
      texts.push_back(str(left, ' ', right));
    }
    put("merges", std::move(texts));
    return {};
  }

  // SentencePiece merges the pair whose token has the best score, whatever the pair. tokenizer.json
  // has these pairs in the order of the scores, so the order of their tokens gives scores.
  Status add_scores(const TokenizerParts& parts) {
    MORACLE_TRY(const auto pairs, merges());
    std::unordered_map<std::string, double> scores;
    std::unordered_set<std::string> listed;
    std::string last;
    for (const auto& [left, right] : pairs) {
      const std::string merged = left + right;
      listed.insert(str(left, ' ', right));
      if (merged == last) continue;
      last = merged;
      if (scores.emplace(merged, -static_cast<double>(scores.size() + 1)).second) continue;
      return unsupported("model.merges",
                         "all pairs of a token one after another, as from SentencePiece",
                         str("those of '", merged, "' are in two places"));
    }
    const Vocabulary& vocabulary = vocabulary_of(parts.model);
    for (const auto& [text, score] : scores) {
      for (size_t at = 1; at < text.size(); ++at) {
        const std::string left = text.substr(0, at), right = text.substr(at);
        if (!vocabulary.id(left) || !vocabulary.id(right) || listed.contains(str(left, ' ', right)))
          continue;
        return unsupported("model.merges",
                           "every pair of tokens that make a token, as from SentencePiece",
                           str("'", left, "', '", right, "' is missing"));
      }
    }
    Json all = Json::array();
    for (int32_t id = 0; id < vocab_size_; ++id) {
      const TokenText* const token = parts.tokens.find(id);
      const auto found = token == nullptr ? scores.end() : scores.find(token->text);
      constexpr double kNever = -1e9;  // a single character, or a token that no pair makes
      all.push_back(found != scores.end() ? found->second : kNever);
    }
    put("scores", std::move(all));
    return {};
  }

  Status add_roles(const TokenizerParts& parts) {
    MORACLE_TRY(const auto special, read_special_tokens(folder_));
    std::map<std::string, int32_t> roles;
    const auto id_of = [&](const std::string& text) {
      const auto added = parts.added.id(text);
      return added ? added : vocabulary_of(parts.model).id(text);
    };
    for (const auto& [name, role] : kGgufRoles) {
      const auto text = special.find(name);
      if (text == special.end()) continue;
      if (const auto id = id_of(text->second)) roles[role] = *id;
    }
    if (!ends_.empty()) roles.try_emplace("eos_token_id", ends_[0]);
    const char* const more[] = {"eot_token_id", "eom_token_id"};
    size_t next = 0;
    for (const int32_t id : ends_) {
      if (next < std::size(more) && id != roles["eos_token_id"]) roles[more[next++]] = id;
    }
    const std::vector<int32_t>&before = parts.post_processor.before,
          &after = parts.post_processor.after;
    const auto take = [&](const std::vector<int32_t>& ids, const char* role,
                          const char* flag) -> Status {
      put(flag, !ids.empty());
      if (ids.empty()) return {};
      const int32_t id = roles.try_emplace(role, ids[0]).first->second;
      if (ids.size() == 1 && ids[0] == id) return {};
      return unsupported("post_processor", str("at most the token of ", role, " (", id, ")"),
                         str("it adds ", join(ids)));
    };
    MORACLE_CHECK(take(before, "bos_token_id", "add_bos_token"));
    MORACLE_CHECK(take(after, "eos_token_id", "add_eos_token"));
    if (sentence_piece_) {
      const JsonField field = JsonField(document_, file_)["model"]["unk_token"];
      const Json& unknown = field.value();
      if (unknown.is_string()) {
        if (const auto id = id_of(unknown.get<std::string>()))
          roles.try_emplace("unknown_token_id", *id);
      }
    }
    for (const auto& [role, id] : roles) {
      if (id >= 0 && id < vocab_size_) put(role, id);
    }
    return {};
  }

  Status check_same(const Tokenizer& source) const {
    MORACLE_TRY(const Normalizer normalizer,
                Normalizer::parse(JsonField(document_, file_)["normalizer"]));
    MORACLE_TRY(TokenizerParts parts, read_gguf_tokenizer(to_.metadata, file_));
    const Tokenizer written = make_tokenizer(std::move(parts));
    const auto check_text = [&](const std::string& text) -> Status {
      if (first_invalid_utf8(text)) return {};
      std::string same = text;
      if (composes_) {
        MORACLE_TRY(same, normalizer.apply(text));
      }
      MORACLE_TRY(const std::vector<int32_t> a, source.encode(same));
      MORACLE_TRY(const std::vector<int32_t> b, written.encode(same));
      if (a == b) return {};
      const auto shown = JsonField::shown(Json(same));
      return unsupported(str("text ", shown), str("ids ", join(b), ", as GGUF files give"),
                         str("tokenizer.json gives ", join(a)));
    };
    for (const char* text : kSamples) MORACLE_CHECK(check_text(text));
    for (int32_t id = 0; id < source.vocab_size(); ++id) {
      const int32_t ids[] = {id};
      const auto text = source.decode(ids);
      if (!text) continue;  // an id without a token
      MORACLE_TRY(const std::string same, written.decode(ids));
      if (same != *text) {
        return unsupported(str("id ", id),
                           str("the text ", JsonField::shown(Json(same)), ", as GGUF files give"),
                           str("tokenizer.json gives ", JsonField::shown(Json(*text))));
      }
      MORACLE_CHECK(check_text(*text));
    }
    return {};
  }

  const std::string& folder_;
  const std::string file_, name_;
  const int64_t vocab_size_;
  const std::vector<int32_t>& ends_;
  Json document_;
  bool sentence_piece_ = false, composes_ = false;
  WrittenGgufText to_;
};

}  // namespace
}  // namespace write_gguf_text_file

Result<WrittenGgufText> write_gguf_text(const std::string& folder, int64_t vocab_size,
                                        const std::vector<int32_t>& ends) {
  return write_gguf_text_file::TextWriter(folder, vocab_size, ends).run();
}

}  // namespace moracle
