#include "runtime/jit/llvm_module/ptx.hpp"

#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/Constants.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/Metadata.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PatternMatch.h>
#include <llvm/Support/FormatVariadic.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>

#include <utility>
#include <vector>

#include "runtime/jit/llvm_module/left_out.hpp"
#include "runtime/jit/llvm_module/near_uses.hpp"

#if LLVM_VERSION_MAJOR < 20
namespace llvm {
// Of the NVPTX back end, whose header LLVM does not install: it remembers what annotations said.
void clearAnnotationCache(const Module* module);
}  // namespace llvm
#endif

namespace attune::llvm_module {
namespace {

#if LLVM_VERSION_MAJOR < 20
// Says of every struct that a kernel takes by value that the kernel only reads it, as
// `__grid_constant__` does: it is then used where the launch put it. Otherwise its address is that
// of a copy in local memory, where a TMA descriptor cannot be. Clang has the attribute from 20 on;
// the back end of 19 knows the annotation.
void mark_grid_constants(llvm::Module& module) {
  llvm::NamedMDNode* annotations = module.getNamedMetadata("nvvm.annotations");
  if (annotations == nullptr) return;
  llvm::LLVMContext& context = module.getContext();
  llvm::IntegerType* i32 = llvm::Type::getInt32Ty(context);
  std::vector<llvm::MDNode*> added;
  for (const llvm::MDNode* node : annotations->operands()) {
    if (node->getNumOperands() < 2) continue;
    auto* kernel = llvm::mdconst::dyn_extract_or_null<llvm::Function>(node->getOperand(0));
    const auto* kind = llvm::dyn_cast_or_null<llvm::MDString>(node->getOperand(1));
    if (kernel == nullptr || kind == nullptr || kind->getString() != "kernel") continue;
    std::vector<llvm::Metadata*> indices;  // from 1
    for (const llvm::Argument& argument : kernel->args()) {
      if (!argument.hasByValAttr()) continue;
      indices.push_back(
          llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(i32, argument.getArgNo() + 1)));
    }
    if (indices.empty()) continue;
    added.push_back(llvm::MDNode::get(context, {llvm::ConstantAsMetadata::get(kernel),
                                                llvm::MDString::get(context, "grid_constant"),
                                                llvm::MDNode::get(context, indices)}));
  }
  for (llvm::MDNode* node : added) annotations->addOperand(node);
  llvm::clearAnnotationCache(&module);
}
#else
void mark_grid_constants(llvm::Module&) {}
#endif

bool is_i32_comparison(const llvm::Value* value) {
  const auto* comparison = llvm::dyn_cast<llvm::ICmpInst>(value);
  return comparison != nullptr && comparison->getOperand(0)->getType()->isIntegerTy(32);
}

// The text of `a operation comparison`; "$3" is a.
std::string setp(const llvm::ICmpInst& comparison, const char* operation) {
  llvm::StringRef name = llvm::ICmpInst::getPredicateName(comparison.getPredicate());  // "ult"
  const char* const type = comparison.isUnsigned() ? "u32" : "s32";
  if (!comparison.isEquality()) name = name.drop_front();
  return llvm::formatv("setp.{0}.{1}.{2} $0, $1, $2, $3;", name, operation, type);
}

// "a and b" or "a or b" as an instruction that the back end does not look into; null when
// `condition` is neither. A comparison is part of it and made anew each time, which costs nothing;
// were its result kept, there would be too many, to be packed and unpacked.
llvm::Value* combined(llvm::Value* condition, llvm::IRBuilder<>& builder) {
  using namespace llvm::PatternMatch;
  llvm::Value *a = nullptr, *b = nullptr;
  const bool is_and = match(condition, m_LogicalAnd(m_Value(a), m_Value(b)));
  if (!is_and && !match(condition, m_LogicalOr(m_Value(a), m_Value(b)))) return nullptr;
  const char* const operation = is_and ? "and" : "or";
  // Of two comparisons the one that fewer others share.
  if (!is_i32_comparison(b) || (is_i32_comparison(a) && a->getNumUses() < b->getNumUses())) {
    std::swap(a, b);
  }
  std::string text = llvm::formatv("{0}.pred $0, $1, $2;", operation);
  std::string constraints = "=b,b,b";
  std::vector<llvm::Value*> operands = {b, a};
  if (is_i32_comparison(b)) {
    const auto& comparison = *llvm::cast<llvm::ICmpInst>(b);
    text = setp(comparison, operation);
    constraints = "=b,r,ri,b";
    operands = {comparison.getOperand(0), comparison.getOperand(1), a};
  }
  std::vector<llvm::Type*> types;
  for (const llvm::Value* operand : operands) types.push_back(operand->getType());
  auto* const type = llvm::FunctionType::get(builder.getInt1Ty(), types, false);
  return builder.CreateCall(llvm::InlineAsm::get(type, text, constraints, /*hasSideEffects=*/false),
                            operands);
}

bool is_wgmma(const llvm::Instruction& instruction) {
  const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
  const auto* text =
      call == nullptr ? nullptr : llvm::dyn_cast<llvm::InlineAsm>(call->getCalledOperand());
  return text != nullptr && llvm::StringRef(text->getAsmString()).contains("wgmma.mma_async");
}

bool has_wgmma(const llvm::Function& function) {
  return llvm::any_of(llvm::instructions(function), is_wgmma);
}

// Kernels of wgmma hold up to 200 registers in tiles alone. In the source's order values are
// computed early, and then one or two are lacking: ptxas serialises the products (C7512). Other
// kernels want operands loaded early, which an order cannot take from them but addresses that wait
// in registers can.
void arrange(llvm::Module& module, bool listed) {
  if (!llvm::any_of(module, has_wgmma)) {
    for (llvm::Function& function : module) {
      if (function.isDeclaration()) continue;
      compute_near_uses(function);
      if (listed) function.addFnAttr(kOrder, kNarrow);
    }
    return;
  }
  for (llvm::Function& function : module) {
    if (has_wgmma(function)) function.addFnAttr(kOrder, listed ? kParallel : kLate);
  }
  // Blocks stay in the order of the source, as NVRTC's do. What the list scheduler ordered stays in
  // its block.
  constexpr const char* kPlacement = "Branch Probability Basic Block Placement";
  static LeftOut placement({kPlacement}),
      placement_and_sinking({kPlacement, "Machine code sinking"});
  module.getContext().setOptPassGate(listed ? placement_and_sinking : placement);
}

// The back end makes two selects of `select (a and b), x, y`; here comparisons combine predicates
// at no cost, so one is better.
void keep_conditions_whole(llvm::Function& function) {
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    auto* select = llvm::dyn_cast<llvm::SelectInst>(&instruction);
    if (select == nullptr || select->getType()->isIntegerTy(1)) continue;
    llvm::IRBuilder<> builder(select);
    if (llvm::Value* condition = combined(select->getCondition(), builder)) {
      select->setCondition(condition);
    }
  }
}

// A loop's last branch goes back under its condition, where LLVM has it leave under the opposite
// one. ptxas then moves less of what stands before a wait at the loop's end behind it.
void go_back_conditionally(llvm::Function& function) {
  const llvm::DominatorTree dominators(function);
  const llvm::LoopInfo loops(dominators);
  for (const llvm::Loop* loop : loops.getLoopsInPreorder()) {
    llvm::BasicBlock* const last = loop->getLoopLatch();
    auto* const branch =
        last == nullptr ? nullptr : llvm::dyn_cast<llvm::BranchInst>(last->getTerminator());
    if (branch == nullptr || branch->isUnconditional()) continue;
    if (loop->contains(branch->getSuccessor(0))) continue;
    llvm::IRBuilder<> builder(branch);
    llvm::InvertBranch(branch, builder);
  }
}

}  // namespace

void prepare_for_ptx(llvm::Module& module, bool listed) {
  mark_grid_constants(module);
  for (llvm::Function& function : module) {
    keep_conditions_whole(function);
    if (has_wgmma(function)) go_back_conditionally(function);
  }
  arrange(module, listed);
}

}  // namespace attune::llvm_module
