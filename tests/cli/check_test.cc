// Tests `moracle check --without`: runs the kernels of CPUs with fewer features.
#include <nlohmann/json.hpp>

#include "moracle/oracle.h"
#include "run_command.h"

namespace moracle::check_test {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using testing::Ran;
using testing::run_command;

struct ReducedCpu {
  const char* backend;
  Isa needs;
  const char* without;
  const char* scheme;
};

TEST(CheckWithout, RunsKernelsOfLesserCpus) {
  const Isa has = Machine::here().cpu.isa, vnni = Isa::kAvx512 | Isa::kAvx512Vnni;
  const char* const tiles = "amx_int8,amx_bf16";
  int run = 0;
  for (const ReducedCpu& c :
       {ReducedCpu{"cpu", Isa::kNone, "avx2", "int4-w4a16-g128"},
        {"cpu-avx2", Isa::kAvx2, "avx_vnni", "int8-w8a8"},
        {"cpu-avx2", Isa::kAvx2, "avx_vnni", "int4-w4a8-g128"},
        {"cpu-avx2", Isa::kAvx2, "avx512,avx512_vnni", "fp8-w8a8-block128x128"},
        {"cpu-avx512", vnni, "avx512_bf16", "mxfp8-w8a8"},
        {"cpu-avx512", vnni | Isa::kAvx512Bf16, tiles, "mxfp8-w8a8"},
        {"cpu-avx512", vnni | Isa::kAvx512Bf16, tiles, "mxfp4-w4a8"}}) {
    if (missing(c.needs, has) != Isa::kNone) continue;
    SCOPED_TRACE(std::string(c.backend) + " without " + c.without + " in " + c.scheme);
    const Ran ran = run_command({"check", "--backend", c.backend, "--scheme", c.scheme, "--variant",
                                 "plain", "--without", c.without, "--threads", "2", "--json"});
    EXPECT_EQ(ran.code, 0) << ran.err << ran.out;
    EXPECT_GE(Json::parse(ran.out).at("passed").get<int>(), 60);
    ++run;
  }
  EXPECT_GE(run, 1);
}

TEST(Check, ReportsProgressWhenStopped) {
  testing::expect_one_line(testing::run_interrupted({"check", "--threads", "1"}),
                           {"check: stopped after ", " cases, 0 failures so far"}, 1);
}

TEST(CheckWithout, RejectsRowsThatNeedMaskedInstructions) {
  const Ran ran = run_command({"check", "--backend", "cpu-avx2", "--scheme", "int8-w8a8",
                               "--variant", "plain", "--without", "avx2", "--json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(Json::parse(ran.out).at("passed"), 0);
  const Ran unknown = run_command({"check", "--without", "avx2,avx9"});
  EXPECT_NE(unknown.code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("'avx9'"));
  EXPECT_THAT(unknown.err, HasSubstr("avx512_vnni"));
}

}  // namespace
}  // namespace moracle::check_test
