// A fall-through queue: the oldest word is always at the output.
module queue #(
    parameter DEPTH = 4,
    parameter DBITS = 32,
    parameter ALMOST_EMPTY_THRESHOLD = 1,
    parameter ALMOST_FULL_THRESHOLD = 1
) (
    input  logic clk_i,
    input  logic rst_ni,
    input  logic clr_i,
    input  logic ena_i,
    input  logic we_i,
    input  logic [DBITS-1:0] d_i,
    input  logic re_i,
    output logic [DBITS-1:0] q_o,
    output logic empty_o,
    output logic full_o,
    output logic almost_empty_o,
    output logic almost_full_o
);
    logic [DBITS-1:0] queue_data [0:DEPTH-1];
    logic [$clog2(DEPTH+1)-1:0] queue_wadr;
    wire take = re_i && !empty_o, put = we_i && (!full_o || re_i);
    wire [$clog2(DEPTH+1)-1:0] place = queue_wadr - take;
    integer i;

    always_ff @(posedge clk_i or negedge rst_ni)
        if (!rst_ni) begin
            queue_wadr <= 0;
            for (i = 0; i < DEPTH; i = i + 1) queue_data[i] <= 0;
        end else if (clr_i) begin
            queue_wadr <= 0;
        end else if (ena_i) begin
            if (take) for (i = 0; i < DEPTH - 1; i = i + 1) queue_data[i] <= queue_data[i+1];
            if (put) queue_data[place] <= d_i;
            queue_wadr <= place + put;
        end

    assign q_o = queue_data[0];
    assign empty_o = queue_wadr == 0;
    assign full_o = queue_wadr == DEPTH;
    assign almost_empty_o = queue_wadr <= ALMOST_EMPTY_THRESHOLD;
    assign almost_full_o = queue_wadr >= DEPTH - ALMOST_FULL_THRESHOLD;
endmodule
