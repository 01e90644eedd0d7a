// One layer of experts through the library, as in the README.
#include <moracle/moracle.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto checkpoint = moracle::Checkpoint::open(argv[1]);
  if (!checkpoint) return std::fprintf(stderr, "%s\n", checkpoint.error().to_string().c_str()), 1;
  auto layer = checkpoint->moe_layer(0);
  if (!layer) return std::fprintf(stderr, "%s\n", layer.error().to_string().c_str()), 1;
  const int64_t hidden_size = layer->spec.hidden_size;
  const auto selection = moracle::select(
      {.layer = layer->spec, .platform = moracle::Platform::kCpu}, moracle::Machine::here());
  auto moe = moracle::FusedMoe::make(*std::move(layer), selection, *moracle::open_device("cpu"));
  if (!moe) return std::fprintf(stderr, "%s\n", moe.error().to_string().c_str()), 1;

  std::vector<float> hidden(hidden_size, 0.1f), output(hidden_size);
  const int32_t ids[] = {0, 1, 2, 3};
  const float weights[] = {0.4f, 0.3f, 0.2f, 0.1f};
  const auto done = moe->apply(moracle::Matrix::f32(hidden.data(), 1, hidden_size), {ids},
                               {weights}, moracle::Matrix::f32(output.data(), 1, hidden_size));
  std::printf("%s: output[0] = %f\n", std::string(moe->plan().backend->name).c_str(), output[0]);
  return done ? 0 : 1;
}
