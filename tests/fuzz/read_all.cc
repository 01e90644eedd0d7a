#include "fuzz/read_all.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/text.h"
#include "checkpoint/state.h"
#include "layout/layout.h"
#include "moracle/model.h"
#include "moracle/moe.h"

namespace moracle::testing {
namespace {

// Checks the guarantees of canonical form (quant.h), and the description made before reading.
void require_canonical(const CanonicalMatrix& m, const MatrixShape& shape) {
  require(m.n == shape.n && m.k == shape.k && m.key == shape.key);
  require(m.n > 0 && m.k > 0);
  require(m.codes.size() == static_cast<size_t>(m.n * m.row_bytes()));
  require(m.storage.empty() ? m.memory != nullptr : m.codes.data() == m.storage.data());
  const int64_t scales = m.key.quantized() ? m.scale_rows() * m.scale_cols() : 0;
  require(m.scales.size() == static_cast<size_t>(scales));
  require(m.zero_points.size() == (m.key.symmetric ? 0 : m.scales.size()));
  require(std::all_of(m.scales.begin(), m.scales.end(), [](float s) { return std::isfinite(s); }));
  require(m.group_index.size() == (shape.group_index ? static_cast<size_t>(m.k) : 0));
  for (const int32_t group : m.group_index) require(group >= 0 && group < m.scale_cols());
  require(m.bias.size() == (shape.bias ? static_cast<size_t>(m.n) : 0));
  const bool half_byte = m.k * bits(m.key.dtype) % 8 != 0;
  for (int64_t r = 0; half_byte && r < m.n; ++r) {
    require((m.codes[(r + 1) * m.row_bytes() - 1] & std::byte{0xf0}) == std::byte{0});
  }
}

void read(const DescribedMatrix& matrix) {
  require(!matrix.tensors().empty() && matrix.source_bytes() > 0);
  const auto again = parse_scheme(name(matrix.scheme()));
  require(again.ok() && *again == matrix.scheme() && !describe(matrix.scheme()).empty());
  for (int64_t e = 0; e < matrix.num_experts(); ++e) {
    const auto expert = matrix.expert(e);
    if (!passes(expert)) continue;
    require_canonical(*expert, matrix.shape());
    for (const Layout* layout : layouts()) {
      const auto& holds = layout->holds;
      if (std::find(holds.begin(), holds.end(), expert->key.dtype) == holds.end()) continue;
      std::vector<std::byte> packed(layout->sections(matrix.shape()).bytes);
      pack(*layout, *expert, packed.data());
    }
  }
}

// Runs two tokens through a layer's experts on this backend.
void run(DescribedWeights&& weights, const std::string& backend) {
  static const std::shared_ptr<Device> device = *open_device("cpu", 1);
  static const Machine machine = Machine::here();
  const LayerSpec spec = weights.spec;
  const Selection selection =
      select({.layer = spec, .max_num_tokens = 2, .backend = backend}, machine);
  require(!explain(selection).empty());
  auto moe = FusedMoe::make(std::move(weights), selection, device);
  if (!passes(moe)) return;
  std::vector<float> hidden(2 * spec.hidden_size, 0.5f), output(hidden.size());
  std::vector<int32_t> ids(2 * spec.top_k, -1);
  for (size_t i = 0; i < ids.size(); i += 2) ids[i] = static_cast<int32_t>(i) / 2;
  const std::vector<float> weighs(ids.size(), 0.25f);
  require(passes(moe->apply(Matrix::f32(hidden.data(), 2, spec.hidden_size), {ids.data()},
                            {weighs.data()}, Matrix::f32(output.data(), 2, spec.hidden_size))));
}

void read_layer(const Checkpoint& checkpoint, int64_t layer) {
  auto weights = checkpoint.moe_layer(layer);
  if (!passes(weights)) return;
  require(weights->w13.num_experts() == weights->spec.num_experts);
  require(weights->w2.num_experts() == weights->spec.num_experts);
  read(weights->w13);
  read(weights->w2);
  run(*std::move(weights), "auto");
  weights = checkpoint.moe_layer(layer);
  require(weights.ok());
  run(*std::move(weights), "reference");
}

// Runs the whole model if its architecture is known: a prompt of two tokens, then one more token.
void generate(const Checkpoint& checkpoint) {
  auto model = Model::load(checkpoint, {.threads = 1, .max_num_tokens = 2});
  if (!passes(model)) return;
  const int32_t last = static_cast<int32_t>(model->vocab_size()) - 1;
  const auto generation = generate(*model, std::vector<int32_t>{0, last}, {.max_tokens = 2});
  if (passes(generation)) require(generation->ids.size() == 2);
}

void read_linear(Result<DescribedMatrix> matrix) {
  if (passes(matrix)) read(*matrix);
}

}  // namespace

void read_all(const std::string& folder) {
  const auto checkpoint = Checkpoint::open(folder);
  if (!passes(checkpoint)) return;
  passes(outline(*checkpoint));
  passes(GenerationConfig::open(*checkpoint));
  generate(*checkpoint);
  for (const int64_t layer : checkpoint->moe_layers()) {
    read_layer(*checkpoint, layer);
    const std::string attention = str("model.layers.", layer, ".self_attn.");
    read_linear(
        checkpoint->linear({attention + "q_proj", attention + "k_proj", attention + "v_proj"}));
    read_linear(checkpoint->router(str("model.layers.", layer, ".mlp.gate")));
  }
  std::set<std::string> modules;
  for (const auto& [name, tensor] : checkpoint->state().tensors.all()) {
    modules.insert(name.substr(0, name.rfind('.')));
  }
  for (const std::string& module : modules) {
    read_linear(checkpoint->linear({module}));
    passes(checkpoint->vector(module + ".weight", 32));
  }
}

}  // namespace moracle::testing
