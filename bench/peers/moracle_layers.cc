// C functions that make layers from given weights and run them on given tokens.
#include "base/text.h"
#include "base/try.h"
#include "bench/bench.h"
#include "c_strings.h"
#include "moracle/moe.h"
#include "moracle_weights.h"
#include "oracle/backend.h"

namespace moracle::peers {
namespace {

struct Layers {
  std::shared_ptr<Device> device;
  std::vector<FusedMoe> layers;
};

// Must match the declaration in bench/peers/moracle.py.
struct LayersArgs {
  int64_t num_experts, hidden_size, intermediate_size, top_k;
  int64_t num_layers, max_num_tokens, threads, pool_rows, bf16_activations;
  const char* scheme;
  const float* pool13;      // [pool_rows, hidden_size]
  const float* pool2;       // [pool_rows, intermediate_size]
  const int32_t* blocks13;  // [num_layers, num_experts, 2 * intermediate_size / kBlockRows]
  const int32_t* blocks2;   // [num_layers, num_experts, hidden_size / kBlockRows]
};

Result<std::shared_ptr<const CanonicalMatrix>> pool_of(const float* floats, int64_t rows,
                                                       const MatrixShape& shape) {
  MORACLE_TRY(CanonicalMatrix pool,
              quantize_pool({floats, static_cast<size_t>(rows * shape.k)}, shape.k, shape.key));
  return std::make_shared<const CanonicalMatrix>(std::move(pool));
}

Result<std::unique_ptr<Layers>> make(const LayersArgs& args) {
  MORACLE_TRY(const Scheme scheme, parse_scheme(args.scheme));
  bench::LayerShape shape;
  shape.name = "peers";
  shape.num_experts = args.num_experts;
  shape.hidden_size = args.hidden_size;
  shape.intermediate_size = args.intermediate_size;
  shape.top_k = args.top_k;
  Request request;
  request.layer = bench::layer_of(shape, scheme);
  request.max_num_tokens = args.max_num_tokens;
  request.bf16_activations = args.bf16_activations != 0;
  const Selection selection = select(request, Machine::here());
  MORACLE_TRY(const Plan plan, selection.chosen());

  const std::vector<MatrixShape> matrices = plan.layer.matrices();
  for (const MatrixShape& m : matrices) {
    if (m.n % kBlockRows == 0) continue;
    return Error{ErrorKind::kInvalidArgument, "", "shape",
                 str("sizes in multiples of ", kBlockRows), str(m.n, " rows")};
  }
  auto made = std::make_unique<Layers>();
  MORACLE_TRY(made->device, open_device("cpu", static_cast<int>(args.threads)));
  auto workspace = std::make_shared<Workspace>(made->device);
  MORACLE_TRY(const auto pool13, pool_of(args.pool13, args.pool_rows, matrices[0]));
  MORACLE_TRY(const auto pool2, pool_of(args.pool2, args.pool_rows, matrices[1]));
  const auto count = [&](size_t m) { return args.num_experts * matrices[m].n / kBlockRows; };
  for (int64_t i = 0; i < args.num_layers; ++i) {
    const std::span<const int32_t> w13(args.blocks13 + i * count(0), count(0));
    const std::span<const int32_t> w2(args.blocks2 + i * count(1), count(1));
    DescribedWeights weights{plan.layer,
                             experts_of_blocks(pool13, matrices[0], scheme, args.num_experts, w13),
                             experts_of_blocks(pool2, matrices[1], scheme, args.num_experts, w2)};
    MORACLE_TRY(FusedMoe layer, FusedMoe::make(std::move(weights), selection, workspace));
    made->layers.push_back(std::move(layer));
  }
  return made;
}

Status run(Layers& layers, int64_t which, const float* hidden, int64_t num_tokens,
           const int32_t* ids, const float* weights, float* output) {
  FusedMoe& layer = layers.layers[which];
  const int64_t hidden_size = layer.plan().layer.hidden_size;
  MORACLE_CHECK(layer.apply(Matrix::f32(const_cast<float*>(hidden), num_tokens, hidden_size), {ids},
                            {weights}, Matrix::f32(output, num_tokens, hidden_size)));
  return layers.device->synchronize();
}

}  // namespace
}  // namespace moracle::peers

using moracle::peers::Layers;

extern "C" {

/// Returns null with the error in `text`, or layers with their backend's name in `text`.
Layers* moracle_layers_make(const moracle::peers::LayersArgs* args, char* text) {
  auto made = moracle::peers::make(*args);
  if (!made) return moracle::peers::give_text(made.error().to_string(), text), nullptr;
  const moracle::Plan& plan = (*made)->layers.front().plan();
  moracle::peers::give_text(plan.backend->name, text);
  return made->release();
}

/// Returns 0; or 1 with the error in `text`.
int moracle_layers_run(Layers* layers, int64_t which, const float* hidden, int64_t num_tokens,
                       const int32_t* ids, const float* weights, float* output, char* text) {
  const moracle::Status done =
      moracle::peers::run(*layers, which, hidden, num_tokens, ids, weights, output);
  if (!done) moracle::peers::give_text(done.error().to_string(), text);
  return done ? 0 : 1;
}

/// Codes, scales and zero points of one expert.
int64_t moracle_layers_expert_bytes(const Layers* layers) {
  return moracle::bench::expert_bytes(layers->layers.front().plan().layer);
}

void moracle_layers_free(Layers* layers) {
  delete layers;
}

}  // extern "C"
