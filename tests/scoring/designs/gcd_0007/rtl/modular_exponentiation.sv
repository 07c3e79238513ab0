// Left to right: per bit of the exponent a squaring, and a multiplication by the base where the bit is set.
module modular_exponentiation #(
    parameter WIDTH = 8
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             start,
    input  logic [WIDTH-1:0] base,
    input  logic [WIDTH-1:0] exponent,
    input  logic [WIDTH-1:0] mod_val,
    output logic [WIDTH-1:0] result,
    output logic             done
);
    typedef enum logic [2:0] {IDLE, SQUARE, SQUARING, MULTIPLY, MULTIPLYING, DONE} state_t;

    state_t                     state;
    logic [WIDTH-1:0]           acc, base_mod, exp, modulus, product;
    logic [$clog2(WIDTH+1)-1:0] bits_left;
    logic                       product_ready;

    wire squaring = state == SQUARE || state == SQUARING;

    modular_multiplier #(.WIDTH(WIDTH)) u_multiplier (
        .clk, .rst, .start(state == SQUARE || state == MULTIPLY),
        .A(acc), .B(squaring ? acc : base_mod), .mod_val(modulus),
        .result(product), .done(product_ready)
    );

    always_ff @(posedge clk)
        if (rst) begin
            state <= IDLE;
            {acc, base_mod, exp, modulus, bits_left, result, done} <= 0;
        end else
            case (state)
                IDLE: begin
                    done <= 0;
                    acc <= mod_val == 1 ? 0 : 1;
                    base_mod <= base % mod_val;
                    exp <= exponent;
                    modulus <= mod_val;
                    bits_left <= WIDTH;
                    if (start) state <= SQUARE;
                end
                SQUARE: state <= SQUARING;
                SQUARING:
                    if (product_ready) begin
                        acc <= product;
                        exp <= exp << 1;
                        bits_left <= bits_left - 1;
                        if (exp[WIDTH-1]) state <= MULTIPLY;
                        else if (bits_left == 1) state <= DONE;
                        else state <= SQUARE;
                    end
                MULTIPLY: state <= MULTIPLYING;
                MULTIPLYING:
                    if (product_ready) begin
                        acc <= product;
                        if (bits_left == 0) state <= DONE;
                        else state <= SQUARE;
                    end
                default: begin
                    result <= acc;
                    done <= 1;
                    if (!start) state <= IDLE;
                end
            endcase
endmodule
