// Runs one layer of experts. README.md shows this program.
#include <moracle/moracle.h>

#include <cstdio>

int fail(const moracle::Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  return 1;
}

int main(int, char** argv) {
  auto checkpoint = moracle::Checkpoint::open(argv[1]);  // config, producer, tensors
  if (!checkpoint) return fail(checkpoint.error());
  auto layer = checkpoint->moe_layer(0);  // described, not yet read
  if (!layer) return fail(layer.error());
  const int64_t size = layer->spec.hidden_size, top_k = layer->spec.top_k;
  auto selection = moracle::select({.layer = layer->spec, .platform = moracle::Platform::kCpu},
                                   moracle::Machine::here());
  std::puts(moracle::explain(selection).c_str());  // the choice and all reasons
  auto device = moracle::open_device("cpu");
  if (!device) return fail(device.error());
  auto moe = moracle::FusedMoe::make(*std::move(layer), selection, *device);  // converts once
  if (!moe) return fail(moe.error());

  std::vector<float> hidden(4 * size), output(4 * size);  // 4 tokens
  std::vector<int32_t> ids(4 * top_k, 0);                 // the experts of each
  std::vector<float> weights(4 * top_k, 0.25f);
  // apply allocates nothing.
  auto done = moe->apply(moracle::Matrix::f32(hidden.data(), 4, size), {ids.data()},
                         {weights.data()}, moracle::Matrix::f32(output.data(), 4, size));
  return done ? 0 : fail(done.error());
}
