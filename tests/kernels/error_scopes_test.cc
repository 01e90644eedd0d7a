// Tests layers that share a device's error cells.
#include "kernels/device/error_scopes.h"

#include <gtest/gtest.h>

namespace moracle::error_scopes_test {
namespace {

TEST(ErrorScopes, EndedLayerKeepsItsScopeUntilErrorsAreCollected) {
  ErrorScopes scopes;
  const int first = scopes.add("first"), second = scopes.add("second");
  EXPECT_NE(first, 0);
  EXPECT_NE(first, second);
  EXPECT_EQ(scopes.name(0), "");
  scopes.remove(first);
  const int third = scopes.add("third");
  EXPECT_NE(third, first);
  EXPECT_EQ(scopes.name(first), "first") << "its error may come later";
  scopes.collected();
  EXPECT_EQ(scopes.add("fourth"), first);
  EXPECT_EQ(scopes.name(first), "fourth");
  EXPECT_EQ(scopes.end(), 4);
}

TEST(ErrorScopes, LayersPastTheLastScopeHaveNoName) {
  ErrorScopes scopes;
  for (int i = 1; i < ErrorScopes::kMost; ++i) ASSERT_EQ(scopes.add("layer"), i);
  EXPECT_EQ(scopes.add("one more"), 0);
  scopes.remove(0);
  scopes.collected();
  EXPECT_EQ(scopes.add("one more"), 0);
  scopes.remove(7);
  scopes.collected();
  EXPECT_EQ(scopes.add("in its place"), 7);
}

TEST(ErrorScopes, EnteringReturnsTheScopeBefore) {
  ErrorScopes scopes;
  const int layer = scopes.add("layer");
  EXPECT_EQ(scopes.enter(layer), 0);
  EXPECT_EQ(scopes.current(), layer);
  EXPECT_EQ(scopes.enter(0), layer);
}

}  // namespace
}  // namespace moracle::error_scopes_test
