module arithmetic_progression_generator #(
    parameter DATA_WIDTH = 16,
    parameter SEQUENCE_LENGTH = 10,
    localparam TERMS = SEQUENCE_LENGTH > 0 ? SEQUENCE_LENGTH : 1,
    localparam WIDTH_OUT_VAL = (SEQUENCE_LENGTH > 0 ? $clog2(SEQUENCE_LENGTH) : 1) + DATA_WIDTH
) (
    input  logic clk,
    input  logic resetn,
    input  logic enable,
    input  logic [DATA_WIDTH-1:0] start_val,
    input  logic [DATA_WIDTH-1:0] step_size,
    output logic [WIDTH_OUT_VAL-1:0] out_val,
    output logic done
);
    logic [$clog2(TERMS+1):0] counter;

    always_ff @(posedge clk or negedge resetn)
        if (!resetn) begin
            out_val <= 0;
            counter <= 0;
            done <= 1'b0;
        end else if (enable && !done && SEQUENCE_LENGTH > 0) begin
            out_val <= counter == 0 ? WIDTH_OUT_VAL'(start_val) : out_val + step_size;
            counter <= counter + 1;
            done <= counter == TERMS - 1;
        end
endmodule
