#include "checkpoint/gguf/open_gguf.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/gguf/gguf_splits.h"
#include "checkpoint/gguf/translate_config.h"
#include "checkpoint/gguf/translate_tensors.h"

namespace moracle {
namespace open_gguf_model {
namespace {

struct Found {
  NamedConvention family;
  const GgufConvention* gguf;
};

Result<Found> find_family(const Config& metadata, const Tensors& stored) {
  MORACLE_TRY(const std::string architecture, metadata.text({"general.architecture"}));
  std::vector<std::string_view> known;
  for (const NamedConvention& family : conventions()) {
    for (const GgufConvention& gguf : family.convention->gguf) {
      if (std::find(known.begin(), known.end(), gguf.architecture) == known.end())
        known.push_back(gguf.architecture);
      const bool same = gguf.architecture == architecture;
      if (same && (gguf.applies == nullptr || gguf.applies(metadata, stored)))
        return Found{family, &gguf};
    }
  }
  std::sort(known.begin(), known.end());
  const bool other = std::find(known.begin(), known.end(), architecture) != known.end();
  return metadata.unsupported(
      {"general.architecture"}, "a model with experts of one of " + join(known),
      str("it is '", architecture, "'", other ? ", of a form without a reader" : ""));
}

// Drop the vocabulary, up to a million texts: a checkpoint lives as long as a server runs, and only
// the tokenizer needs it.
void drop_vocabulary(nlohmann::json& metadata) {
  for (auto at = metadata.begin(); at != metadata.end();) {
    const bool drop = at.key().starts_with("tokenizer.") && at->is_array();
    at = drop ? metadata.erase(at) : std::next(at);
  }
}

}  // namespace
}  // namespace open_gguf_model

Result<GgufCheckpoint> open_gguf(const std::string& path) {
  using namespace open_gguf_model;
  MORACLE_TRY(GgufSplits splits, open_gguf_splits(path));
  drop_vocabulary(splits.metadata);
  Config metadata = Config::from(std::move(splits.metadata), splits.files[0].path());
  MORACLE_TRY(Tensors stored, Tensors::from(std::move(splits.files)));
  MORACLE_TRY(const Found found, find_family(metadata, stored));
  const GgufConvention& gguf = *found.gguf;
  MORACLE_TRY(TranslatedConfig config, translate_gguf_config(metadata, gguf, stored));
  MORACLE_TRY(auto tensors, translate_gguf_tensors(
                                stored, gguf, config.values["num_hidden_layers"].get<int64_t>()));
  if (gguf.finish != nullptr) {
    GgufModel model{metadata, gguf.architecture, config.values, tensors, stored};
    MORACLE_CHECK(gguf.finish(model));
  }
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  const std::string left_out = config.left_out.dump(-1, ' ', false, kReplace);
  GgufCheckpoint checkpoint{
      std::string(found.family.model_class),
      found.family.convention,
      Config::from(std::move(config.values), metadata.path(), std::move(config.origins)),
      std::move(metadata),
      Tensors::from(
          std::move(stored).take_files(), std::move(tensors),
          [table = found.gguf](const std::string& name) { return gguf_name_of(*table, name); }),
      std::move(splits.left_out)};
  for (const std::string_view defaults :
       {found.family.convention->defaults, std::string_view(left_out), gguf.constants})
    MORACLE_CHECK(checkpoint.config.set_defaults(defaults));
  return checkpoint;
}

Result<std::optional<Config>> gguf_metadata(const std::string& path) {
  if (!is_gguf_path(path)) return std::optional<Config>();
  MORACLE_TRY(GgufSplits splits, open_gguf_splits(path));
  return std::optional(Config::from(std::move(splits.metadata), splits.files[0].path()));
}

}  // namespace moracle
