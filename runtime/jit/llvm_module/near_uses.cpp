// LLVM computes what a loop does not change before the loop, however cheap it is. Of addresses that
// is a register each; beside tiles that fill the registers, ptxas then has none to load operands
// into ahead of their products. Here such arithmetic is done again where it is used.
#include "runtime/jit/llvm_module/near_uses.hpp"

#include <llvm/ADT/MapVector.h>
#include <llvm/ADT/PostOrderIterator.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/Analysis/LoopInfo.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/Instructions.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>

#include <vector>

#include "runtime/jit/llvm_module/left_out.hpp"

namespace attune::llvm_module {
namespace {

bool is_cheap(const llvm::Instruction& instruction) {
  if (!instruction.getType()->isIntegerTy() || instruction.getType()->isIntegerTy(1)) return false;
  switch (instruction.getOpcode()) {
    case llvm::Instruction::Add:
    case llvm::Instruction::Sub:
    case llvm::Instruction::And:
    case llvm::Instruction::Or:
    case llvm::Instruction::Xor:
    case llvm::Instruction::Shl:
    case llvm::Instruction::LShr:
    case llvm::Instruction::AShr:
    case llvm::Instruction::ZExt:
    case llvm::Instruction::SExt:
    case llvm::Instruction::Trunc:
      return true;
    default:
      return false;
  }
}

// Whether both are the same cheap arithmetic on the same values.
bool is_same(const llvm::Value* a, const llvm::Value* b) {
  if (a == b) return true;
  const auto* x = llvm::dyn_cast<llvm::Instruction>(a);
  const auto* y = llvm::dyn_cast<llvm::Instruction>(b);
  if (x == nullptr || y == nullptr || !is_cheap(*x) || !x->isSameOperationAs(y)) return false;
  return llvm::equal(x->operands(), y->operands(), is_same);
}

// What `a` and `b` both compute, before `place`, from the values that they share.
llvm::Value* repeat_common(llvm::Value* a, llvm::Value* b, llvm::Instruction* place) {
  if (a == b) return a;
  llvm::Instruction* const again = llvm::cast<llvm::Instruction>(a)->clone();
  for (unsigned i = 0; i < again->getNumOperands(); ++i) {
    again->setOperand(i, repeat_common(again->getOperand(i),
                                       llvm::cast<llvm::Instruction>(b)->getOperand(i), place));
  }
  again->dropPoisonGeneratingFlags();  // the other's may differ
  again->insertBefore(place);
  return again;
}

// What the passes left out would have merged: loads that masks repeat from element to element.
void merge_equal(llvm::Function& function) {
  llvm::FunctionAnalysisManager analyses;
  llvm::PassBuilder().registerFunctionAnalyses(analyses);
  llvm::EarlyCSEPass().run(function, analyses);
}

// A phi of equal arithmetic becomes the arithmetic.
void drop_equal_choices(llvm::Function& function) {
  for (llvm::BasicBlock& block : function) {
    for (llvm::PHINode& phi : llvm::make_early_inc_range(block.phis())) {
      llvm::Value* const first = phi.getIncomingValue(0);
      const auto other = llvm::find_if(phi.incoming_values(),
                                       [&](const llvm::Use& use) { return use.get() != first; });
      const bool equal = llvm::all_of(phi.incoming_values(),
                                      [&](const llvm::Use& use) { return is_same(first, use); });
      if (!equal || other == phi.incoming_values().end()) continue;
      phi.replaceAllUsesWith(repeat_common(first, *other, &*block.getFirstInsertionPt()));
      phi.eraseFromParent();
    }
  }
}

// The instruction that a value must precede for a use of it.
llvm::Instruction* place_of(const llvm::Use& use) {
  auto* const user = llvm::cast<llvm::Instruction>(use.getUser());
  const auto* phi = llvm::dyn_cast<llvm::PHINode>(user);
  return phi == nullptr ? user : phi->getIncomingBlock(use)->getTerminator();
}

// The outermost loop of `block` that `value` is outside of; null: none.
const llvm::Loop* loop_beside(const llvm::Instruction& value, const llvm::BasicBlock* block,
                              const llvm::LoopInfo& loops) {
  const llvm::Loop* beside = nullptr;
  for (const llvm::Loop* loop = loops.getLoopFor(block);
       loop != nullptr && !loop->contains(value.getParent()); loop = loop->getParentLoop()) {
    beside = loop;
  }
  return beside;
}

// Whether the loop would hold fewer values, or no more, without this one: all operands but one are
// constants or needed there in any case.
bool spares_registers(const llvm::Instruction& value, const llvm::Loop& loop) {
  return llvm::count_if(value.operands(), [&](const llvm::Value* operand) {
           return !llvm::isa<llvm::Constant>(operand) &&
                  llvm::none_of(operand->uses(), [&](const llvm::Use& use) {
                    return use.getUser() != &value && loop.contains(place_of(use)->getParent());
                  });
         }) <= 1;
}

// Repeats `value` in each block that uses it inside a loop which it is outside of.
void repeat_in_loops(llvm::Instruction& value, const llvm::LoopInfo& loops) {
  llvm::MapVector<llvm::BasicBlock*, std::vector<llvm::Use*>> uses;
  for (llvm::Use& use : value.uses()) {
    llvm::BasicBlock* const block = place_of(use)->getParent();
    const llvm::Loop* const loop = loop_beside(value, block, loops);
    if (loop != nullptr && spares_registers(value, *loop)) uses[block].push_back(&use);
  }
  for (const auto& [block, uses_there] : uses) {
    llvm::Instruction* first = place_of(*uses_there.front());
    for (const llvm::Use* use : uses_there) {
      if (place_of(*use)->comesBefore(first)) first = place_of(*use);
    }
    llvm::Instruction* const again = value.clone();
    again->insertBefore(first);
    for (llvm::Use* use : uses_there) use->set(again);
  }
}

}  // namespace

void compute_near_uses(llvm::Function& function) {
  merge_equal(function);
  // The passes of the back end that would undo what follows.
  static LeftOut hoisting({"Early CSE", "Global Value Numbering",
                           "Early Machine Loop Invariant Code Motion",
                           "Machine Common Subexpression Elimination"});
  function.getContext().setOptPassGate(hoisting);
  drop_equal_choices(function);
  const llvm::DominatorTree dominators(function);
  const llvm::LoopInfo loops(dominators);
  // Users before what they use, so that a whole address follows its use.
  std::vector<llvm::Instruction*> cheap;
  for (llvm::BasicBlock* block : llvm::post_order(&function)) {
    for (llvm::Instruction& instruction : llvm::reverse(*block)) {
      if (is_cheap(instruction)) cheap.push_back(&instruction);
    }
  }
  for (llvm::Instruction* value : cheap) {
    repeat_in_loops(*value, loops);
    if (value->use_empty()) value->eraseFromParent();
  }
}

}  // namespace attune::llvm_module
