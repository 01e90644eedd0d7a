// Reads a checkpoint that a real tool wrote, where it stands beside the clone.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "moracle/checkpoint.h"
#include "quant/codec.h"

namespace moracle::testing {

inline void expect_finite_rows(const DescribedMatrix& matrix) {
  for (int64_t e = 0; e < matrix.num_experts(); ++e) {
    const auto expert = matrix.expert(e);
    ASSERT_TRUE(expert.ok()) << expert.error().to_string();
    std::vector<double> row(expert->k);
    double largest = 0;
    for (int64_t r = 0; r < expert->n; ++r) {
      dequantize_row(*expert, r, row.data());
      for (const double value : row) {
        ASSERT_TRUE(std::isfinite(value)) << "expert " << e << " row " << r;
        largest = std::max(largest, std::abs(value));
      }
    }
    // Trained weights of these models are around 0.1.
    EXPECT_GT(largest, 0.01);
    EXPECT_LT(largest, 10);
  }
}

/// Opens the folder, describes layer 0, and dequantizes attention and every expert of layer 1.
inline void expect_stored(const std::string& directory, const std::string& producer,
                          const std::string& scheme) {
  const std::string folder = std::string(MORACLE_CHECKPOINTS_DIR) + "/" + directory;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->producer(), producer);
  const auto first = checkpoint->moe_layer(0);
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  EXPECT_EQ(name(first->spec.scheme), scheme);
  const auto second = checkpoint->moe_layer(1);
  ASSERT_TRUE(second.ok()) << second.error().to_string();
  expect_finite_rows(second->w13);
  expect_finite_rows(second->w2);
  const std::string attention = "model.layers.1.self_attn.";
  const auto qkv =
      checkpoint->linear({attention + "q_proj", attention + "k_proj", attention + "v_proj"});
  ASSERT_TRUE(qkv.ok()) << qkv.error().to_string();
  EXPECT_EQ(name(qkv->scheme()), scheme);
  expect_finite_rows(*qkv);
  const auto router = checkpoint->router("model.layers.1.mlp.gate");
  ASSERT_TRUE(router.ok()) << router.error().to_string();
  EXPECT_FALSE(router->scheme().weight.quantized());
}

}  // namespace moracle::testing
