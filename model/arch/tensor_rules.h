/* What the row of a family's table (weight_table.h) says of a model with this configuration: a weight's name, shape and
 * format. */
#ifndef TD_MODEL_ARCH_TENSOR_RULES_H
#define TD_MODEL_ARCH_TENSOR_RULES_H

#include "model/arch/model_config.h"
#include "model/arch/weight_roles.h"
#include "npu/npu.h"

#define TD_ORDER_PARTS 3

/**
 * Where the rows that the model computes with are in a tensor of a checkpoint. All 0: in their places.
 *   rope    of every `block` rows those from `at` on, so many, are stored as pairs, and are halves here
 *   groups  the rows are groups of three parts of part[0 .. 2] rows; there, the parts 0 of all groups come first
 */
typedef struct {
    uint32_t block, rope, at;
    uint32_t groups, part[TD_ORDER_PARTS];
} td_row_order;

/** Whether rows are elsewhere. */
static inline bool td_row_order_moves(const td_row_order *o) {
    return o->rope || o->groups;
}

/** Where row r is there. @param o moves rows. */
size_t td_row_order_place(const td_row_order *o, size_t r);

/** Where an expert's weight lies in a tensor of all experts: its row r is row step * r + first of the `rows` of the expert's
 * part. */
typedef struct {
    uint32_t n_experts, expert; /* n_experts 0: the weight has a tensor of its own */
    uint32_t step, first, rows;
    bool     transposed; /* a part is [columns, rows] where it is not in codes */
    bool     by_shape;   /* whether it is so stands in the tensor's shape alone */
} td_stack_part;

typedef struct {
    char               name[160]; /* "model.layers.3.self_attn.o_proj.weight" */
    uint32_t           rank;      /* 1 or 2 */
    size_t             shape[2];
    td_weight_format   format; /* of a quantised device tier; W8A8 becomes bf16 or f32 on one that is not */
    bool               linear; /* td_model_weight_format may give the weight another format */
    td_place           place;
    td_split           split;
    td_stack_part      stack;
    td_row_order       order;       /* of the tensor of that name */
    char               within[160]; /* the stack's name, if it is read only where there is none of `name`; else "" */
    td_rotation_effect rotation;
    td_filling         filling;   /* of a dummy checkpoint */
    bool               plus_one;  /* the weight is one more than what the checkpoint has */
    uint32_t           n_experts; /* its values are numbers below this, stored as integers; 0: they are not */
    td_role            fallback;  /* stands in when the checkpoint has no such tensor; TD_ROLE_COUNT: it is required */
} td_tensor_spec;

/**
 * The weight of a role. @param layer, expert ignored by roles without them.
 * @return false when a model of this configuration has no such weight there (a bias that is switched off, a router in a
 * dense layer).
 */
bool td_tensor_spec_get(const td_model_config *c, td_role role, uint32_t layer, uint32_t expert, td_tensor_spec *out);

/** How often a role occurs: layers and experts to loop over. Roles of the whole model: 1 and 1. */
void td_role_extent(const td_model_config *c, td_role role, uint32_t *n_layers, uint32_t *n_experts);

/** Whether a role belongs to routed experts; whether it belongs to the whole model, and not to layers. */
bool td_role_is_expert(const td_model_config *c, td_role role);
bool td_role_is_of_model(const td_model_config *c, td_role role);

#endif
