// One layer of experts on the CPU: router logits in, expert outputs out. experts_cpu MODEL
#include <moracle/moracle.h>

#include <cmath>
#include <cstdio>

namespace {

constexpr int64_t kTokens = 4;

moracle::Result<double> run(const char* folder) {
  auto checkpoint = moracle::Checkpoint::open(folder);  // config, producer, tensors
  if (!checkpoint) return checkpoint.error();
  auto layer = checkpoint->moe_layer(checkpoint->moe_layers().front());  // described, not yet read
  if (!layer) return layer.error();
  const moracle::LayerSpec spec = layer->spec;
  std::printf("%s\n", moracle::describe(spec).c_str());

  moracle::Request request;
  request.layer = spec;
  request.max_num_tokens = kTokens;  // of one apply; sizes the workspace
  request.platform = moracle::Platform::kCpu;
  const moracle::Selection selection = moracle::select(request, moracle::Machine::here());
  std::printf("%s", moracle::explain(selection, false).c_str());  // true: all reasons
  auto device = moracle::open_device("cpu");
  if (!device) return device.error();
  auto moe = moracle::FusedMoe::make(*std::move(layer), selection, *device);  // reads and packs
  if (!moe) return moe.error();

  std::vector<float> hidden(kTokens * spec.hidden_size), output(hidden.size());
  std::vector<float> logits(kTokens * spec.num_experts), weights(kTokens * spec.top_k);
  std::vector<int32_t> ids(kTokens * spec.top_k);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = std::sin(0.37f * static_cast<float>(i));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::cos(1.7f * static_cast<float>(i));

  // Neither call allocates; on a CPU the work is done when they return.
  const moracle::Status routed =
      moracle::route(**device, moracle::Matrix::f32(logits.data(), kTokens, spec.num_experts),
                     spec.routing, spec.top_k, {}, ids.data(), weights.data());
  if (!routed) return routed.error();
  const auto x = moracle::ConstMatrix::f32(hidden.data(), kTokens, spec.hidden_size);
  const auto y = moracle::Matrix::f32(output.data(), kTokens, spec.hidden_size);
  const moracle::Status done = moe->apply(x, {ids.data()}, {weights.data()}, y);
  if (!done) return done.error();

  double squares = 0;
  for (const float value : output) squares += value * value;
  return std::sqrt(squares / static_cast<double>(output.size()));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: experts_cpu MODEL\n");
    return 2;
  }
  const moracle::Result<double> size = run(arguments[1]);
  if (!size) {
    std::fprintf(stderr, "%s\n", size.error().to_string().c_str());
    return 1;
  }
  std::printf("root mean square of the output: %.4f\n", *size);
}
