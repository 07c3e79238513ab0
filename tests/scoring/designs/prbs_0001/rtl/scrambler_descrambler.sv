module scrambler_descrambler #(
    parameter int POLY_LENGTH = 31,
    parameter int POLY_TAP = 3,
    parameter int WIDTH = 16,
    parameter bit CHECK_MODE = 0
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             bypass_scrambling,
    input  logic [WIDTH-1:0] data_in,
    input  logic             valid_in,
    output logic [WIDTH-1:0] data_out,
    output logic             valid_out,
    output logic [31:0]      bit_count
);
    logic [WIDTH-1:0] prbs, data_q;
    logic             valid_q, bypass_q;

    prbs_gen_check #(
        .CHECK_MODE(CHECK_MODE), .POLY_LENGTH(POLY_LENGTH), .POLY_TAP(POLY_TAP), .WIDTH(WIDTH)
    ) u_prbs (
        .clk, .rst, .data_in(CHECK_MODE ? data_in : {WIDTH{1'b0}}), .data_out(prbs)
    );

    always_ff @(posedge clk)
        if (rst) {data_q, valid_q, bypass_q, bit_count} <= 0;
        else begin
            {data_q, valid_q, bypass_q} <= {data_in, valid_in, bypass_scrambling};
            if (valid_in) bit_count <= bit_count + WIDTH;
        end

    generate
        if (CHECK_MODE) begin : g_check
            // The checker's verdict comes with data_q; what is bypassed goes round that stage.
            always_ff @(posedge clk)
                if (rst) {data_out, valid_out} <= 0;
                else {data_out, valid_out} <= bypass_scrambling ? {data_in, valid_in} : {prbs, valid_q};
        end else begin : g_scramble
            assign data_out = bypass_q ? data_q : data_q ^ prbs;
            assign valid_out = valid_q;
        end
    endgenerate
endmodule
