#include "checkpoint/gguf/translate_tensors.h"

#include <optional>
#include <unordered_map>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace translate_tensors {
namespace {

// No published layer has more experts than 1,024; the bound limits what a broken file can allocate.
constexpr int64_t kMaxExperts = 1 << 16;

using Table = std::unordered_map<std::string_view, const GgufTensor*>;

Table table_of(const GgufConvention& family) {
  Table table;
  for (const std::span<const GgufTensor> tensors :
       {family.tensors, std::span<const GgufTensor>(kGgufDecoderTensors)}) {
    for (const GgufTensor& one : tensors) table.try_emplace(one.from, &one);
  }
  return table;
}

// "blk.3.attn_q.weight" as "blk.{L}.attn_q.weight" and 3.
struct LayerName {
  std::string pattern;
  std::optional<int64_t> layer;
};
LayerName parse(const std::string& name) {
  constexpr std::string_view kStart = "blk.";
  if (!name.starts_with(kStart)) return {name, {}};
  const size_t end = name.find_first_not_of("0123456789", kStart.size());
  const size_t digits = (end == name.npos ? name.size() : end) - kStart.size();
  if (digits == 0 || digits > 5) return {name, {}};
  return {str(kStart, "{L}", name.substr(kStart.size() + digits)),
          std::stoll(name.substr(kStart.size(), digits))};
}

std::string replaced(std::string text, std::string_view what, int64_t number) {
  if (const size_t at = text.find(what); at != text.npos)
    text.replace(at, what.size(), std::to_string(number));
  return text;
}

// An ending of a name, which tables leave out, and the ending that families read. The factor of a
// matrix and the unused scale of its activations have ModelOpt's names.
struct Ending {
  std::string_view stored, published;
};
constexpr Ending kEndings[] = {{".weight", ".weight"},
                               {".bias", ".bias"},
                               {".input_scale", ".input_scale"},
                               {".scale", ".weight_scale_2"}};

Ending ending_of(std::string_view name) {
  for (const Ending& ending : kEndings) {
    if (name.ends_with(ending.stored)) return ending;
  }
  return {};
}

std::string_view published_ending(std::string_view name) {
  for (const Ending& ending : kEndings) {
    if (name.ends_with(ending.published)) return ending.published;
  }
  return {};
}

// Files from before April 2024 have one tensor for each expert: "blk.{L}.ffn_gate.3". Holds the
// pattern of the joint tensor, "blk.{L}.ffn_gate_exps", and 3.
struct SingleExpert {
  std::string all;
  int64_t expert = -1;
};
SingleExpert single_expert(std::string_view pattern) {
  const size_t dot = std::min(pattern.rfind('.'), pattern.size());
  const std::string_view number = pattern.substr(std::min(dot + 1, pattern.size()));
  if (number.empty() || number.size() > 5 || number.find_first_not_of("0123456789") != number.npos)
    return {};
  return {str(pattern.substr(0, dot), "_exps"), std::stoll(std::string(number))};
}

class Translation {
 public:
  Translation(const Tensors& stored, const GgufConvention& family, int64_t num_layers)
      : stored_(stored), table_(table_of(family)), num_layers_(num_layers) {}

  Result<std::map<std::string, Tensors::Entry>> run() {
    for (const auto& [name, entry] : stored_.all()) MORACLE_CHECK(add(name, entry));
    return std::move(to_);
  }

 private:
  Status add(const std::string& name, const Tensors::Entry& stored) {
    const auto [pattern, layer] = parse(name);
    Tensors::Entry entry = stored;
    entry.stored = name;
    Ending ending;
    auto row = table_.find(pattern);
    const int64_t l = layer.value_or(0);
    if (row == table_.end()) {
      ending = ending_of(pattern);
      const auto rest = std::string_view(pattern).substr(0, pattern.size() - ending.stored.size());
      row = table_.find(rest);
      const SingleExpert single = row == table_.end() ? single_expert(rest) : SingleExpert();
      const auto all = table_.find(single.all);
      if (all != table_.end() && all->second->to.find("{E}") != std::string_view::npos) {
        const std::string to = str(all->second->to, ending.published);
        return put(replaced(replaced(to, "{L}", l), "{E}", single.expert), std::move(entry));
      }
    }
    if (row == table_.end()) {
      const bool behind = layer && l >= num_layers_;
      constexpr size_t kPattern = sizeof "blk.{L}" - 1;
      return put(behind ? str("model.layers.", l, pattern.substr(kPattern)) : name,
                 std::move(entry));
    }
    const GgufTensor& to = *row->second;
    entry.change = to.change;
    if (to.change != nullptr && entry.view.dtype != DType::kF32)
      return stored_.wrong(name, "f32", "it is " + to_string(entry.view));
    const auto full = [&](std::string_view published) {
      return replaced(str(published, ending.published), "{L}", l);
    };
    if (to.to.find("{E}") == to.to.npos)
      return put_rows(full(to.to), to.second.empty() ? "" : full(to.second), std::move(entry));
    return put_experts(full(to.to), to.second.empty() ? "" : full(to.second), entry);
  }

  Status put_experts(const std::string& first, const std::string& second,
                     const Tensors::Entry& all) {
    const std::vector<int64_t>& shape = all.view.shape;
    const bool is_number = first.ends_with("scale") || first.ends_with("scale_2");
    if (shape.size() < (is_number ? 1 : 2) || shape[0] > kMaxExperts ||
        all.view.num_elements() == 0) {
      return stored_.wrong(all.stored,
                           str("a row or a matrix for each of at most ", kMaxExperts, " experts"),
                           "it is " + to_string(all.view));
    }
    Tensors::Entry one = all;
    one.view.shape.erase(one.view.shape.begin());
    if (one.view.shape.empty()) one.view.shape = {1};
    const auto bytes = static_cast<int64_t>(one.view.num_bytes());
    for (int64_t e = 0; e < shape[0]; ++e) {
      one.first_byte = e * bytes;
      MORACLE_CHECK(put_rows(replaced(first, "{E}", e), replaced(second, "{E}", e), one));
    }
    return {};
  }

  // Puts the rows under one name, or their halves under two.
  Status put_rows(std::string first, std::string second, Tensors::Entry entry) {
    if (second.empty()) return put(std::move(first), std::move(entry));
    std::vector<int64_t>& shape = entry.view.shape;
    if (shape.empty() || shape[0] % 2 != 0)
      return stored_.wrong(entry.stored, "an even number of rows for two matrices",
                           "it is " + to_string(*stored_.find(entry.stored)));
    shape[0] /= 2;
    const auto half = static_cast<int64_t>(entry.view.num_bytes());
    MORACLE_CHECK(put(std::move(first), entry));
    entry.first_byte += half;
    return put(std::move(second), std::move(entry));
  }

  Status put(std::string name, Tensors::Entry entry) {
    std::string stored = entry.stored;
    const auto [at, is_new] = to_.try_emplace(std::move(name), std::move(entry));
    if (is_new) return {};
    return stored_.wrong(stored, str("one tensor for '", at->first, "'"),
                         str("'", at->second.stored, "' is the same"));
  }

  const Tensors& stored_;
  const Table table_;
  const int64_t num_layers_;
  std::map<std::string, Tensors::Entry> to_;
};

// The layer in `name` if it matches the pattern; -1 for a pattern without a layer.
std::optional<int64_t> fit(std::string_view pattern, std::string_view name) {
  int64_t layer = -1;
  while (true) {
    const size_t brace = std::min(pattern.find('{'), pattern.size());
    if (name.substr(0, brace) != pattern.substr(0, brace)) return std::nullopt;
    pattern.remove_prefix(brace);
    name.remove_prefix(brace);
    if (pattern.empty()) return name.empty() ? std::optional(layer) : std::nullopt;
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0 || digits > 9) return std::nullopt;
    if (pattern.starts_with("{L}")) layer = std::stoll(std::string(name.substr(0, digits)));
    pattern.remove_prefix(3);
    name.remove_prefix(digits);
  }
}

}  // namespace
}  // namespace translate_tensors

Result<std::map<std::string, Tensors::Entry>> translate_gguf_tensors(const Tensors& stored,
                                                                     const GgufConvention& family,
                                                                     int64_t num_layers) {
  return translate_tensors::Translation(stored, family, num_layers).run();
}

std::optional<GgufName> find_gguf_name(const GgufConvention& family, const std::string& name) {
  using namespace translate_tensors;
  for (const std::span<const GgufTensor> tensors :
       {family.tensors, std::span<const GgufTensor>(kGgufDecoderTensors)}) {
    for (const GgufTensor& one : tensors) {
      for (const std::string_view ending : {std::string_view(), published_ending(name)}) {
        for (const std::string_view to : {one.to, one.second}) {
          if (to.empty()) continue;
          const std::optional<int64_t> layer =
              fit(to, std::string_view(name).substr(0, name.size() - ending.size()));
          if (layer) return GgufName{&one, replaced(str(one.from, ending), "{L}", *layer)};
        }
      }
    }
  }
  return std::nullopt;
}

std::string gguf_name_of(const GgufConvention& family, const std::string& name) {
  const std::optional<GgufName> place = find_gguf_name(family, name);
  return place ? place->stored : "";
}

}  // namespace moracle
