module fifo_buffer #(
    parameter int unsigned NUM_OF_REQS = 2,
    parameter bit          ResetAll    = 1'b0
) (
    input  logic                   clk_i,
    input  logic                   rst_i,

    input  logic                   clear_i,
    output logic [NUM_OF_REQS-1:0] busy_o,

    input  logic                   in_valid_i,
    input  logic [31:0]            in_addr_i,
    input  logic [31:0]            in_rdata_i,
    input  logic                   in_err_i,

    output logic                   out_valid_o,
    input  logic                   out_ready_i,
    output logic [31:0]            out_addr_o,
    output logic [31:0]            out_rdata_o,
    output logic                   out_err_o,
    output logic                   out_err_plus2_o
);
    localparam int unsigned FIFO_DEPTH = NUM_OF_REQS + 1;

    logic [31:0]           rdata_q [0:FIFO_DEPTH-1], rdata_d [0:FIFO_DEPTH-1], rdata_in [0:FIFO_DEPTH];
    logic [FIFO_DEPTH-1:0] valid_q, valid_d, err_q, err_d;
    logic [FIFO_DEPTH:0]   valid_in, err_in;
    logic [31:1]           addr_q, addr_d;

    // The two oldest words; one that has just come counts as soon as it is there.
    wire [31:0] first        = valid_q[0] ? rdata_q[0] : in_rdata_i;
    wire        first_err    = valid_q[0] ? err_q[0] : in_err_i;
    wire        first_valid  = valid_q[0] || in_valid_i;
    wire [31:0] second       = valid_q[1] ? rdata_q[1] : in_rdata_i;
    wire        second_err   = valid_q[1] ? err_q[1] : in_err_i;
    wire        second_valid = valid_q[1] || (valid_q[0] && in_valid_i);

    wire unaligned  = addr_q[1];
    wire compressed = out_rdata_o[1:0] != 2'b11;
    wire across     = unaligned && !compressed;
    wire taken      = out_ready_i && out_valid_o;
    // A compressed instruction in the lower half leaves the upper half to be read.
    wire pop        = taken && (unaligned || !compressed);

    assign out_addr_o      = {addr_q, 1'b0};
    assign out_rdata_o     = unaligned ? {second[15:0], first[31:16]} : first;
    assign out_valid_o     = across ? second_valid : first_valid;
    assign out_err_o       = first_err || (across && second_err);
    assign out_err_plus2_o = unaligned && second_err && !first_err;
    assign busy_o          = valid_q[FIFO_DEPTH-1-:NUM_OF_REQS];

    assign addr_d = clear_i ? in_addr_i[31:1] : taken ? addr_q + (compressed ? 31'd1 : 31'd2) : addr_q;

    // The word that comes goes to the lowest free entry; then all move down by one if the oldest goes.
    for (genvar i = 0; i < FIFO_DEPTH; i++) begin : g_next
        if (i == 0) assign valid_in[i] = valid_q[i] || in_valid_i;
        else assign valid_in[i] = valid_q[i] || (valid_q[i-1] && in_valid_i);
        assign rdata_in[i] = valid_q[i] ? rdata_q[i] : in_rdata_i;
        assign err_in[i]   = valid_q[i] ? err_q[i] : in_err_i;

        assign valid_d[i]  = (pop ? valid_in[i+1] : valid_in[i]) && !clear_i;
        assign rdata_d[i]  = pop ? rdata_in[i+1] : rdata_in[i];
        assign err_d[i]    = pop ? err_in[i+1] : err_in[i];
    end
    assign valid_in[FIFO_DEPTH] = 1'b0;
    assign rdata_in[FIFO_DEPTH] = in_rdata_i;
    assign err_in[FIFO_DEPTH]   = in_err_i;

    always_ff @(posedge clk_i or negedge rst_i)
        if (!rst_i) valid_q <= '0;
        else valid_q <= valid_d;

    if (ResetAll) begin : g_reset_all
        always_ff @(posedge clk_i or negedge rst_i)
            if (!rst_i) begin
                addr_q <= '0;
                err_q <= '0;
                for (int i = 0; i < FIFO_DEPTH; i++) rdata_q[i] <= '0;
            end else begin
                addr_q <= addr_d;
                err_q <= err_d;
                for (int i = 0; i < FIFO_DEPTH; i++) rdata_q[i] <= rdata_d[i];
            end
    end else begin : g_reset_valid
        always_ff @(posedge clk_i) begin
            addr_q <= addr_d;
            err_q <= err_d;
            for (int i = 0; i < FIFO_DEPTH; i++) rdata_q[i] <= rdata_d[i];
        end
    end
endmodule
