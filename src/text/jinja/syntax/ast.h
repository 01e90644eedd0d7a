// A parsed template. Nodes never change after parsing, so concurrent renders can share one tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/values/compare.h"
#include "text/jinja/values/value.h"

namespace moracle::jinja {

enum class ExprKind {
  kConst,               // value
  kName,                // name
  kList,                // items
  kTuple,               // items
  kDict,                // items: key, value, key, value, ...
  kAttribute,           // items[0].name
  kItem,                // items[0][items[1]]
  kSlice,               // items[0][items[1]:items[2]:items[3]], null if omitted
  kCall,                // items[0](items[1], ..., *spread, named, **spread_named)
  kFilter,              // items[0]|function(as kCall); items[0] is null in a filter block
  kTest,                // items[0] is function(as kCall)
  kNot,                 // items[0]
  kAnd,                 // items[0], items[1]
  kOr,                  // items[0], items[1]
  kCompare,             // items[0] comparisons[0] items[1] comparisons[1] items[2] ...
  kConcat,              // items, with ~
  kBinary,              // items[0] name items[1], an operator of arithmetic
  kUnary,               // name items[0], '+' or '-'
  kCondition,           // items[0] if items[1] else items[2], which may be null
  kNamespaceAttribute,  // name.text of value, only as a target of set
};

enum class Comparison {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;
struct Keyword {
  std::string name;
  ExprPtr value;
};

/// One expression; `kind` determines which members are used.
struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 1;
  int height = 1;  ///< longest path to a leaf, in nodes: bounds the stack of recursive walks
  std::string name{};
  Value value{};
  std::vector<ExprPtr> items{};
  std::vector<Keyword> named{};
  ExprPtr spread{}, spread_named{};  ///< may be null
  std::vector<Comparison> comparisons{};
  const Function* function = nullptr;  ///< the filter or the test
};

enum class StmtKind {
  kData,      // name: the text
  kPrint,     // exprs
  kIf,        // branches, the last of them without a condition if there is an else
  kFor,       // target in exprs[0], if exprs[1] (may be null); body, otherwise
  kSet,       // target = exprs[0]
  kSetBlock,  // target, body, exprs[0]: a filter chain or null
  kWith,      // parameters (with default) and body
  kMacro,     // name(parameters), body
  kCall,      // exprs[0]: the call; parameters and body of the caller
  kFilter,    // exprs[0]: a filter chain; body
  kScope,     // body with its own variables: {% generation %}
  kBreak,
  kContinue,
};

struct Stmt;
using StmtPtr = std::unique_ptr<const Stmt>;
using Body = std::vector<StmtPtr>;

struct Branch {
  ExprPtr condition;
  Body body;
};
/// Implicit names that a macro's body uses.
struct MacroExtras {
  bool varargs = false;  ///< extra positional arguments
  bool kwargs = false;   ///< extra named arguments
  bool caller = false;   ///< the body of {% call %}
};
/// A macro's parameter or a variable of {% with %}.
struct Parameter {
  ExprPtr target;
  ExprPtr fallback;
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int line = 1;
  std::string name;
  ExprPtr target;
  std::vector<ExprPtr> exprs;
  std::vector<Parameter> parameters;
  MacroExtras extras;
  std::vector<Branch> branches;
  Body body;
  Body otherwise;
};

}  // namespace moracle::jinja
