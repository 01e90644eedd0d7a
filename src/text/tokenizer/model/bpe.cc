#include "text/tokenizer/model/bpe.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

/// Reads the two parts of one entry of "merges": "a b" or ["a", "b"].
Result<std::pair<std::string, std::string>> read_pair(const JsonField& field) {
  const nlohmann::json& value = field.value();
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string())
    return std::pair{value[0].get_ref<const std::string&>(),
                     value[1].get_ref<const std::string&>()};
  if (!field.value().is_string()) return field.bad("a pair of tokens");
  MORACLE_TRY(const std::string text, field.text());
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    return field.bad("two tokens with one space between them");
  }
  return std::pair{text.substr(0, space), text.substr(space + 1)};
}

bool is_empty_text(const JsonField& field) {
  return field.value().is_string() && field.value().get_ref<const std::string&>().empty();
}

Status refuse_variants(const JsonField& field) {
  const JsonField dropout = field["dropout"];
  if (!dropout.is_null() && dropout.value() != 0) return dropout.unsupported("null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!field[key].is_null() && !is_empty_text(field[key])) return field[key].unsupported("null");
  }
  return {};
}

}  // namespace

Result<Bpe> Bpe::parse(const JsonField& field) {
  MORACLE_CHECK(refuse_variants(field));
  Bpe bpe;
  MORACLE_TRY(bpe.ignore_merges_, field["ignore_merges"].flag_or(false));
  MORACLE_TRY(bpe.vocabulary_, Vocabulary::parse(field["vocab"]));
  MORACLE_CHECK(bpe.read_merges(field["merges"]));
  MORACLE_TRY(bpe.byte_fallback_, field["byte_fallback"].flag_or(false));
  MORACLE_TRY(bpe.fuse_unknown_, field["fuse_unk"].flag_or(false));
  bpe.index();
  if (const JsonField unknown = field["unk_token"]; !unknown.is_null()) {
    MORACLE_TRY(const std::string token, unknown.text());
    const auto id = bpe.vocabulary_.id(token);
    if (!id) return unknown.bad("a token of the vocabulary");
    bpe.unknown_ = *id;
  }
  return bpe;
}

Result<Bpe> Bpe::make(Vocabulary vocabulary, const JsonField& merges, bool ignore_merges,
                      bool byte_fallback) {
  Bpe bpe;
  bpe.vocabulary_ = std::move(vocabulary);
  bpe.ignore_merges_ = ignore_merges;
  bpe.byte_fallback_ = byte_fallback;
  MORACLE_CHECK(bpe.read_merges(merges));
  bpe.index();
  return bpe;
}

void Bpe::index() {
  if (byte_fallback_) bytes_ = ByteTokens(vocabulary_);
  for (uint32_t code = 0; code < kFastCodes; ++code) {
    std::string text;
    append_utf8(code, text);
    fast_ids_[code] = vocabulary_.id(text).value_or(-1);
  }
}

Status Bpe::read_merges(const JsonField& field) {
  if (!field.value().is_array()) return field.bad("an array of pairs of tokens");
  merges_.reserve(field.value().size());
  uint32_t rank = 0;
  for (size_t i = 0; i < field.value().size(); ++i) {
    const auto entry = [&] {
      return JsonField(field.value()[i], field.file(), str(field.place(), '[', i, ']'));
    };
    const nlohmann::json& value = field.value()[i];
    if (value.is_string() && value.get_ref<const std::string&>().rfind("#version", 0) == 0)
      continue;
    auto two = read_pair(JsonField(value, field.file()));
    if (!two) return entry().bad(two.error().need);
    const auto left = vocabulary_.id(two->first);
    const auto right = vocabulary_.id(two->second);
    const auto merged = vocabulary_.id(two->first + two->second);
    if (!left || !right || !merged)
      return entry().bad("a pair whose tokens and result are in the vocabulary");
    merges_[pair(*left, *right)] = {rank++, *merged};  // the last of two equal merges wins
  }
  return {};
}

/// Returns the id of one character; -1 for none.
int32_t Bpe::character(uint32_t code, std::string_view text) const {
  return code < kFastCodes ? fast_ids_[code] : vocabulary_.id(text).value_or(-1);
}

Status Bpe::encode(std::string_view word, EncodeProgress& progress, Scratch& scratch,
                   std::vector<int32_t>& ids) const {
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Error{ErrorKind::kInvalidArgument, "", "text", "words of less than 2 GiB",
                 str("it has ", word.size(), " bytes")};
  }
  if (ignore_merges_) {
    if (const auto whole = vocabulary_.id(word)) {
      ids.push_back(*whole);
      return {};
    }
  }
  read_characters(word, scratch);
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (const int32_t id : scratch.characters) {
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return {};
  symbols.back().next = -1;
  MORACLE_CHECK(merge_all(progress, scratch));
  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next) {
    ids.push_back(symbols[static_cast<size_t>(at)].id);
  }
  return {};
}

/// Maps each character to its token. Delay an unknown character until the next known one, so that
/// it can fuse with its neighbour. Byte fallback tokens do not flush it: Hugging Face tokenizers
/// emits it after them.
void Bpe::read_characters(std::string_view word, Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.characters;
  ids.clear();
  bool pending = false;
  while (!word.empty()) {
    const Utf8Char next = first_char(word);
    const std::string_view text = word.substr(0, next.length);
    word.remove_prefix(next.length);
    if (const int32_t id = character(next.code, text); id >= 0) {
      if (pending) ids.push_back(unknown_);
      pending = false;
      ids.push_back(id);
    } else if (!byte_fallback_ || !bytes_.append(text, ids)) {
      if (pending && !fuse_unknown_) ids.push_back(unknown_);
      pending = unknown_ >= 0;
    }
  }
  if (pending) ids.push_back(unknown_);
}

namespace {

/// Heap order: the earliest learned pair first; among equal pairs, the leftmost.
constexpr auto kLater = [](const Bpe::Candidate& a, const Bpe::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
};

}  // namespace

/// Adds a candidate for the symbol at `at` and the next one, if they can be merged.
void Bpe::push(Scratch& scratch, int32_t at) const {
  const auto& left = scratch.symbols[static_cast<size_t>(at)];
  if (left.next < 0) return;
  const int32_t right = scratch.symbols[static_cast<size_t>(left.next)].id;
  const auto merge = merges_.find(pair(left.id, right));
  if (merge == merges_.end()) return;
  scratch.heap.push_back({merge->second.rank, at, left.id, right, merge->second.id});
}

/// True if the pair at the candidate's position still merges into the same token. It may be another
/// pair: Hugging Face tokenizers then merges it with the candidate's rank.
bool Bpe::is_current(const Scratch& scratch, const Candidate& candidate) const {
  const Scratch::Symbol& left = scratch.symbols[static_cast<size_t>(candidate.at)];
  if (left.id < 0 || left.next < 0) return false;
  const int32_t right = scratch.symbols[static_cast<size_t>(left.next)].id;
  if (left.id == candidate.left && right == candidate.right) return true;
  const auto merge = merges_.find(pair(left.id, right));
  return merge != merges_.end() && merge->second.id == candidate.merged;
}

Status Bpe::merge_all(EncodeProgress& progress, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto symbol = [&](int32_t at) -> Scratch::Symbol& {
    return symbols[static_cast<size_t>(at)];
  };
  heap.clear();
  for (int32_t at = 0; at >= 0; at = symbol(at).next) {
    if (!progress.step()) return EncodeProgress::stopped();
    push(scratch, at);
  }
  std::make_heap(heap.begin(), heap.end(), kLater);

  const auto push_again = [&](int32_t at) {
    const size_t before = heap.size();
    push(scratch, at);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), kLater);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), kLater);
    const Candidate best = heap.back();
    heap.pop_back();
    if (!progress.step()) return EncodeProgress::stopped();
    if (!is_current(scratch, best)) continue;
    Scratch::Symbol& left = symbol(best.at);
    Scratch::Symbol& right = symbol(left.next);
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbol(left.next).previous = best.at;
      push_again(best.at);
    }
    if (left.previous >= 0) push_again(left.previous);
  }
  return {};
}

}  // namespace moracle
