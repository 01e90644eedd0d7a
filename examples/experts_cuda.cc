// One layer of experts on a CUDA stream of the caller: experts_cuda MODEL. Exit code 77: no GPU.
#include <cuda_runtime.h>
#include <moracle/moracle.h>

#include <bit>
#include <cmath>
#include <cstdio>

namespace {

constexpr int64_t kTokens = 4;

// Device memory of the caller. A kernel of an engine would fill it.
template <class T>
T* allocate(int64_t count) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, count * sizeof(T)) != cudaSuccess) return nullptr;
  return static_cast<T*>(memory);
}

moracle::Error cuda_error(cudaError_t code) {
  return {moracle::ErrorKind::kIo, "", "cuda", "calls that succeed", cudaGetErrorString(code)};
}

// A float as bf16, cut off.
uint16_t bf16(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

moracle::Result<double> run(const char* folder) {
  auto checkpoint = moracle::Checkpoint::open(folder);
  if (!checkpoint) return checkpoint.error();
  auto layer = checkpoint->moe_layer(checkpoint->moe_layers().front());
  if (!layer) return layer.error();
  const moracle::LayerSpec spec = layer->spec;
  moracle::Request request;
  request.layer = spec;
  request.max_num_tokens = kTokens;
  request.platform = moracle::Platform::kCuda;
  const moracle::Selection selection = moracle::select(request, moracle::Machine::here());
  std::printf("%s", moracle::explain(selection, false).c_str());
  auto device = moracle::open_device("cuda:0");
  if (!device) return device.error();
  auto moe = moracle::FusedMoe::make(*std::move(layer), selection, *device);
  if (!moe) return moe.error();

  std::vector<uint16_t> hidden(kTokens * spec.hidden_size), logits(kTokens * spec.num_experts);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = bf16(std::sin(0.37f * i));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = bf16(std::cos(1.7f * i));
  auto* const x = allocate<uint16_t>(kTokens * spec.hidden_size);
  auto* const l = allocate<uint16_t>(kTokens * spec.num_experts);
  auto* const y = allocate<float>(kTokens * spec.hidden_size);
  auto* const ids = allocate<int32_t>(kTokens * spec.top_k);
  auto* const weights = allocate<float>(kTokens * spec.top_k);

  cudaStream_t stream;
  if (const cudaError_t code = cudaStreamCreate(&stream); code != cudaSuccess)
    return cuda_error(code);
  cudaMemcpyAsync(x, hidden.data(), hidden.size() * 2, cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(l, logits.data(), logits.size() * 2, cudaMemcpyHostToDevice, stream);
  // Both calls enqueue work on the stream and return. Activations on a GPU are bf16.
  const moracle::Status routed =
      moracle::route(**device, moracle::Matrix::bf16(l, kTokens, spec.num_experts), spec.routing,
                     spec.top_k, {}, ids, weights, {stream});
  if (!routed) return routed.error();
  const moracle::Status done =
      moe->apply(moracle::ConstMatrix::bf16(x, kTokens, spec.hidden_size), {ids}, {weights},
                 moracle::Matrix::f32(y, kTokens, spec.hidden_size), {stream});
  if (!done) return done.error();
  std::vector<float> output(hidden.size());
  cudaMemcpyAsync(output.data(), y, output.size() * 4, cudaMemcpyDeviceToHost, stream);
  // Waits, and reports errors of kernels.
  if (const moracle::Status end = (*device)->synchronize({stream}); !end) return end.error();
  double squares = 0;
  for (const float value : output) squares += value * value;

  cudaStreamDestroy(stream);
  for (void* const memory : {static_cast<void*>(x), static_cast<void*>(l), static_cast<void*>(y),
                             static_cast<void*>(ids), static_cast<void*>(weights)})
    cudaFree(memory);
  return std::sqrt(squares / static_cast<double>(output.size()));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: experts_cuda MODEL\n");
    return 2;
  }
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: there is no NVIDIA GPU\n");
    return 77;
  }
  const moracle::Result<double> size = run(arguments[1]);
  if (!size) {
    std::fprintf(stderr, "%s\n", size.error().to_string().c_str());
    return 1;
  }
  std::printf("root mean square of the output: %.4f\n", *size);
}
