// What a checkpoint holds, part by part, for `inspect`.
#include <set>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/description.h"
#include "moracle/model.h"

namespace moracle {
namespace {

class Collector {
 public:
  explicit Collector(std::vector<Outline::Part>& parts) : parts_(parts) {}

  void add(const std::string& what, std::optional<int64_t> layer, const DescribedMatrix& matrix) {
    add(what, layer, name(matrix.scheme()), matrix.scheme().weight.quantized(),
        static_cast<int64_t>(matrix.tensors().size()), matrix.source_bytes());
  }
  void add(const std::string& what, std::optional<int64_t> layer, std::string scheme,
           bool quantized, int64_t num_tensors, int64_t bytes) {
    Outline::Part* part = nullptr;
    for (Outline::Part& p : parts_) {
      if (p.what == what && p.scheme == scheme) part = &p;
    }
    if (part == nullptr) {
      parts_.push_back({what, {}, std::move(scheme), quantized, 0, 0});
      part = &parts_.back();
    }
    if (layer && (part->layers.empty() || part->layers.back() != *layer))
      part->layers.push_back(*layer);
    part->num_tensors += num_tensors;
    part->bytes += bytes;
  }

 private:
  std::vector<Outline::Part>& parts_;
};

}  // namespace

Result<Outline> outline(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Description description, describe(checkpoint));
  Outline outline;
  outline.architecture = checkpoint.architecture();
  outline.producer = checkpoint.producer();
  outline.num_layers = checkpoint.num_layers();
  outline.hidden_size = description.spec.hidden_size;
  outline.vocab_size = description.spec.vocab_size;
  outline.max_context = description.spec.max_context;
  outline.bytes = checkpoint.total_bytes();

  Collector parts(outline.parts);
  const std::string_view table = name(description.embedding.dtype);
  parts.add(description.tied ? "embedding, tied to the output" : "embedding", {},
            std::string(table), false, 1, static_cast<int64_t>(description.embedding.num_bytes()));
  int64_t accounted = static_cast<int64_t>(description.embedding.num_bytes());
  for (size_t l = 0; l < description.layers.size(); ++l) {
    const LayerDescription& layer = description.layers[l];
    const auto index = static_cast<int64_t>(l);
    parts.add("attention", index, layer.qkv);
    parts.add("attention", index, layer.o);
    accounted += layer.qkv.source_bytes() + layer.o.source_bytes();
    if (layer.router) {
      parts.add("router", index, *layer.router);
      accounted += layer.router->source_bytes();
      outline.num_experts = layer.mlp.spec.num_experts;
      outline.top_k = layer.mlp.spec.top_k;
      outline.intermediate_size = layer.mlp.spec.intermediate_size;
    }
    const std::string mlp = layer.router ? "experts" : "mlp";
    parts.add(mlp, index, layer.mlp.w13);
    parts.add(mlp, index, layer.mlp.w2);
    accounted += layer.mlp.w13.source_bytes() + layer.mlp.w2.source_bytes();
  }
  if (!description.tied) {
    parts.add("output", {}, description.output);
    accounted += description.output.source_bytes();
  }
  // Every tensor is claimed, so what is left are the norms.
  int64_t others = static_cast<int64_t>(checkpoint.state().tensors.all().size());
  for (const Outline::Part& part : outline.parts) others -= part.num_tensors;
  parts.add("norms", {}, "float", false, others, outline.bytes - accounted);
  return outline;
}

}  // namespace moracle
