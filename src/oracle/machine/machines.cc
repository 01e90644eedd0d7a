// Known machines as data: typical configurations of public hardware. They allow a selection to be
// explained and tested without the machine.
#include "moracle/oracle.h"
#include "oracle/machine/libraries.h"

namespace moracle {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr Isa kAvx512Server = Isa::kAvx2 | Isa::kAvx512 | Isa::kAvx512Vnni | Isa::kAvx512Bf16;
constexpr Isa kAmxServer =
    kAvx512Server | Isa::kAvxVnni | Isa::kAvx512Fp16 | Isa::kAmxInt8 | Isa::kAmxBf16;

CpuInfo server() {
  return {"AMD EPYC 9004 (Zen 4)", kAvx512Server, 32, 256 * kGiB};
}
// Shared memory is the opt-in maximum per block (CUDA C++ programming guide, technical
// specifications per compute capability).
GpuInfo nvidia_gpu(const char* model, int capability, int64_t gib, int64_t shared_kib) {
  return {Platform::kCuda, 0, model, capability, gib * kGiB, shared_kib * 1024};
}
// What the drivers of all devices below offer.
constexpr GpuFeature kOpenCl = GpuFeature::kSharedPointers | GpuFeature::kAtomics64;
// `percent` of the memory is the largest allocation: AMD's runtime grants 85 % unless an
// environment variable changes that, Intel's about 95 % on GPUs with 64-bit addresses, PoCL a
// quarter.
GpuInfo opencl_gpu(const char* model, int64_t gib, int64_t local_kib, GpuFeature features,
                   int percent) {
  return {Platform::kOpenCl,         0, model, 0, gib * kGiB, local_kib * 1024, kOpenCl | features,
          gib * kGiB / 100 * percent};
}
// A known machine does not depend on the build that evaluates it. Its vendor's libraries are
// installed.
std::vector<Machine> for_every_platform(std::vector<Machine> machines) {
  for (Machine& machine : machines) {
    machine.every_platform = true;
    for (const GpuInfo& gpu : machine.gpus)
      if (gpu.platform == Platform::kCuda) machine.libraries = Library::kCublasLt | kCublasLtBlocks;
  }
  return machines;
}
constexpr GpuFeature kXe = GpuFeature::kSubgroups | GpuFeature::kMatrix;

}  // namespace

std::span<const Machine> Machine::known() {
  static const std::vector<Machine> kKnown = for_every_platform({
      {"x86-64", {"any x86-64 CPU without AVX2", Isa::kNone, 4, 8 * kGiB}, {}},
      {"desktop-avx2", {"Intel Core i7-8700 (Coffee Lake)", Isa::kAvx2, 12, 32 * kGiB}, {}},
      {"xeon-avx512",
       {"Intel Xeon Gold 6230 (Cascade Lake)", Isa::kAvx2 | Isa::kAvx512 | Isa::kAvx512Vnni, 40,
        192 * kGiB},
       {}},
      {"epyc-zen4", server(), {}},
      {"xeon-amx",
       {"Intel Xeon Platinum 8480+ (Sapphire Rapids)", kAmxServer, 112, 512 * kGiB},
       {}},
      {"a100", server(), {nvidia_gpu("NVIDIA A100 80GB", 80, 80, 163)}},
      {"rtx3090", server(), {nvidia_gpu("NVIDIA GeForce RTX 3090", 86, 24, 99)}},
      {"rtx4090", server(), {nvidia_gpu("NVIDIA GeForce RTX 4090", 89, 24, 99)}},
      {"l40s", server(), {nvidia_gpu("NVIDIA L40S", 89, 48, 99)}},
      {"h100", server(), {nvidia_gpu("NVIDIA H100 SXM", 90, 80, 227)}},
      {"h200", server(), {nvidia_gpu("NVIDIA H200", 90, 141, 227)}},
      {"b200", server(), {nvidia_gpu("NVIDIA B200", 100, 180, 227)}},
      {"rtx-5090", server(), {nvidia_gpu("NVIDIA GeForce RTX 5090", 120, 32, 99)}},
      {"mi300x",
       server(),
       {opencl_gpu("AMD Instinct MI300X", 192, 64, GpuFeature::kSubgroups, 85)}},
      {"pocl", server(), {opencl_gpu("PoCL on the CPU", 256, 512, GpuFeature::kCpuCores, 25)}},
      {"arc-b580", server(), {opencl_gpu("Intel Arc B580", 12, 128, kXe, 95)}},
      {"max-1550", server(), {opencl_gpu("Intel Data Center GPU Max 1550", 128, 128, kXe, 95)}},
  });
  return kKnown;
}

}  // namespace moracle
