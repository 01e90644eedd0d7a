#include "oracle/rates/rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iomanip>

#include "base/text.h"
#include "oracle/machine/detect.h"
#include "oracle/rates/multiply_loops.h"

namespace moracle {
namespace {

struct MultiplyLoop {
  std::string_view name;
  Isa isa;
  void (*run)(int64_t rounds);
  double ops_per_round;
};

#if defined(__x86_64__)
using cpu::kMultiplies;
constexpr MultiplyLoop kMultiplyLoops[] = {
    {"f32 avx2", Isa::kAvx2, cpu::multiply_f32_avx2, 2.0 * kMultiplies * 8},
    {"int8 avx2", Isa::kAvx2, cpu::multiply_int8_avx2, 2.0 * kMultiplies * 16},
    {"int8 avx_vnni", Isa::kAvxVnni, cpu::multiply_int8_avx_vnni, 2.0 * kMultiplies * 32},
    {"f32 avx512", Isa::kAvx512, cpu::multiply_f32_avx512, 2.0 * kMultiplies * 16},
    {"int8 avx512_vnni", Isa::kAvx512Vnni, cpu::multiply_int8_avx512_vnni, 2.0 * kMultiplies * 64},
    {"bf16 avx512_bf16", Isa::kAvx512Bf16, cpu::multiply_bf16_avx512, 2.0 * kMultiplies * 32},
};
#else
constexpr std::array<MultiplyLoop, 0> kMultiplyLoops;
#endif

double seconds_of(const MultiplyLoop& loop, int64_t rounds) {
  const auto start = std::chrono::steady_clock::now();
  loop.run(rounds);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The loops take turns, and the best of several runs counts: an interruption or a slow clock for a
// moment does not decide between two of them.
std::vector<InstructionRate> measure_rates(Isa isa) {
  constexpr double kSeconds = 20e-6;
  constexpr int kPasses = 6;
  struct One {
    const MultiplyLoop* loop;
    int64_t rounds = 64;
    double rate = 0;
  };
  std::vector<One> all;
  for (const MultiplyLoop& loop : kMultiplyLoops)
    if (missing(loop.isa, isa) == Isa::kNone) all.push_back({&loop});
  for (One& one : all)
    while (seconds_of(*one.loop, one.rounds) < kSeconds) one.rounds *= 2;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (One& one : all) {
      const double ops = one.loop->ops_per_round * static_cast<double>(one.rounds);
      one.rate = std::max(one.rate, ops / seconds_of(*one.loop, one.rounds));
    }
  }
  std::vector<InstructionRate> rates;
  for (const One& one : all) rates.push_back({one.loop->name, one.rate});
  return rates;
}

Isa isa_of(std::string_view name) {
  for (const MultiplyLoop& loop : kMultiplyLoops)
    if (loop.name == name) return loop.isa;
  return Isa::kNone;
}

std::string giga_ops(double ops_per_second) {
  std::ostringstream text;
  text << std::setprecision(3) << ops_per_second / 1e9;
  return text.str();
}

}  // namespace

std::vector<InstructionRate> measured_rates(Isa isa) {
  static const std::vector<InstructionRate> all = measure_rates(detect_cpu().isa);
  std::vector<InstructionRate> rates;
  for (const InstructionRate& one : all)
    if (missing(isa_of(one.name), isa) == Isa::kNone) rates.push_back(one);
  return rates;
}

double rate_of(const CpuInfo& cpu, std::string_view name) {
  for (const InstructionRate& one : cpu.rates)
    if (one.name == name) return one.ops_per_second;
  return 0;
}

Bf16Choice choose_bf16(const CpuInfo& cpu) {
  if (missing(Isa::kAvx512Bf16, cpu.isa) != Isa::kNone) return {};
  const double bf16 = rate_of(cpu, "bf16 avx512_bf16"), f32 = rate_of(cpu, "f32 avx512");
  if (!(bf16 > 0 && f32 > 0)) return {missing(Isa::kAmxBf16, cpu.isa) != Isa::kNone};
  const bool pays = bf16 >= kBf16Pays * f32;
  return {pays,
          str(pays ? "bf16" : "f32", " products: avx512_bf16 makes ", giga_ops(bf16),
              " GFLOP/s per thread here, f32 avx512 ", giga_ops(f32), " (measured; bf16 pays ",
              "from ", giga_ops(kBf16Pays * 1e9), " times as many)")};
}

}  // namespace moracle
