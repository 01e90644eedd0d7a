#include "kernels/cpu/limits/limit_loops.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moracle::cpu {

void read_portable(const void* from, size_t bytes) {
  // Volatile forces reads of unused data. Reading one word of each cache line moves the whole line.
  const auto* words = static_cast<const volatile uint64_t*>(from);
  for (size_t i = 0; i < bytes / 8; i += 8) {
    __builtin_prefetch(
        reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(words + i) + 4096));
    (void)words[i];
  }
}

#if defined(__x86_64__)

// Registers that the asm changes. The compiler keeps live vectors in xmm0–15 only.
#define MORACLE_CLOBBERS                                                                   \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory"

// Reads four cache lines per iteration, each into its own register.
#define MORACLE_READ(STEP)                                                                        \
  const auto* at = static_cast<const std::byte*>(from);                                           \
  const std::byte* const end = at + bytes / 256 * 256;                                            \
  if (at == end) return;                                                                          \
  __asm__ volatile(                                                                               \
      ".p2align 5\n1:\n"                                                                          \
      "prefetcht0 4096(%0)\nprefetcht0 4160(%0)\nprefetcht0 4224(%0)\nprefetcht0 4288(%0)\n" STEP \
      "add $256, %0\ncmp %1, %0\njb 1b\nvzeroupper\n"                                             \
      : "+r"(at)                                                                                  \
      : "r"(end)                                                                                  \
      : MORACLE_CLOBBERS)
#define MORACLE_LINE(MOVE, R, AT, TO) MOVE " " AT "(%0), %%" R TO "\n"

void read_avx2(const void* from, size_t bytes) {
#define L(AT, TO) MORACLE_LINE("vmovdqa", "ymm", AT, TO)
  MORACLE_READ(L("0", "0") L("32", "1") L("64", "2") L("96", "3") L("128", "4") L("160", "5")
                   L("192", "6") L("224", "7"));
#undef L
}

void read_avx512(const void* from, size_t bytes) {
#define L(AT, TO) MORACLE_LINE("vmovdqa64", "zmm", AT, TO)
  MORACLE_READ(L("0", "0") L("64", "1") L("128", "2") L("192", "3"));
#undef L
}

namespace {

// Palette 1: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kTiles;

}  // namespace

// Four sums: products of two tiles by two tiles, as in a GEMM's innermost loop.
#define MORACLE_TILES(OP)                                                                 \
  if (rounds < 1) return;                                                                 \
  __asm__ volatile(                                                                       \
      "ldtilecfg %1\n"                                                                    \
      "tilezero %%tmm0\ntilezero %%tmm1\ntilezero %%tmm2\ntilezero %%tmm3\n"              \
      "tilezero %%tmm4\ntilezero %%tmm5\ntilezero %%tmm6\ntilezero %%tmm7\n"              \
      ".p2align 5\n1:\n" OP " %%tmm6, %%tmm4, %%tmm0\n" OP " %%tmm7, %%tmm4, %%tmm1\n" OP \
      " %%tmm6, %%tmm5, %%tmm2\n" OP                                                      \
      " %%tmm7, %%tmm5, %%tmm3\n"                                                         \
      "dec %0\njnz 1b\ntilerelease\n"                                                     \
      : "+r"(rounds)                                                                      \
      : "m"(kTiles)                                                                       \
      : "cc", "memory")

void multiply_int8_amx(int64_t rounds) {
  MORACLE_TILES("tdpbssd");
}
void multiply_bf16_amx(int64_t rounds) {
  MORACLE_TILES("tdpbf16ps");
}

bool allow_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  static const bool allowed = ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
}

#endif

}  // namespace moracle::cpu
